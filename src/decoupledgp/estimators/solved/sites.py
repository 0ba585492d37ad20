"""Learning under likelihoods other than Gaussian noise: Newton's method around the Gaussian solution.

Every round puts a Gaussian site in place of each row's likelihood, at the posterior as it is, and solves
for mean and covariance as under Gaussian noise. Kernel and likelihood are learnt again on the way.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from decoupledgp.estimators.interrupt import finish_first
from decoupledgp.estimators.solved.model import EXACT_ROWS, FEWEST_SCORES, Clock, Follow, Table
from decoupledgp.estimators.solved.run import HYPERPARAMETERS_SHARE, Parts, SolvedRun
from decoupledgp.learners.gradient import nmse
from decoupledgp.likelihoods import (
    expected_log_prob,
    gaussian_likelihood,
    is_location_scale,
    predictive_moments,
)
from decoupledgp.solvers import MeanProblem, Rows, learn_hyperparameters, solve_mean
from decoupledgp.solvers.calibration import Calibration
from decoupledgp.solvers.sites import (
    Sites,
    best_constant,
    calibrate_latent,
    fit_likelihood,
    sites_at,
)

__all__ = ["ROUNDS", "SitesRun"]

ROUNDS = 8
"""Newton rounds at most."""

LEARN_AGAIN = (2, 4)
"""Rounds before which kernel is learnt again, from the sites of that moment."""

CONVERGED = 1e-3
"""Stop when a round changes the mean by less than this share of its own size."""

SHORTEST = 0.1
"""A step after which the bound is lower makes the next ones half as long, down to this."""

OUTLIER = 3.0
"""For the first kernel, targets are drawn in to so many times the distance of the quartiles."""


class SitesRun(SolvedRun):
    """The same as `SolvedRun` for any likelihood with one latent function per output.

    In a stream the site of a row is set when the row comes, and stays.
    """

    def noise(self) -> Float[Tensor, " p"]:
        """No noise but the sites' own."""
        return torch.zeros(self.n_outputs, dtype=self.dtype)

    def solve(self, parts: Parts, clock: Clock, follow: Follow) -> None:
        """Find hyper-parameters, mean, covariance and calibration."""
        kept, sites = self._first_sites(parts.kept, clock)
        held = self.rows(parts.held)
        problem = self.gather(self._table(parts.kept, sites), self._with(kept, sites), clock)
        self.rebuild(problem)
        a, share, former = None, 1.0, -np.inf
        for number in range(ROUNDS):
            if number in LEARN_AGAIN and clock.seconds < HYPERPARAMETERS_SHARE * clock.limit:
                rows = self._with(kept, sites)
                learn_hyperparameters(self.kernel, None, rows, rng=self.rng, again=True)
                problem.functions = self.posterior.mean_basis.at(self.kernel.base_kernel)
            self._put(problem, self._with(kept, sites))
            before = None if a is None else self.mean(kept.x)
            solution = solve_mean(problem, rng=self.rng, start=a, seconds=clock.left / ROUNDS)
            a = solution.a
            with finish_first():
                self.solve_covariance(problem)
                self.set_mean(a)
                variance = self.variance(kept.x)
                self._learn_likelihood(kept, solution.at_rows, variance, held)
                self.iteration += 1
                self.seconds = clock.seconds
                bound = self._bound(kept, solution.at_rows, variance, solution.norm)
                y_mean, _ = predictive_moments(self.likelihood, solution.at_rows, variance)
                record = self.record(bound, nmse(y_mean, kept.y))
            if follow(record) or clock.left < 0 or _settled(before, solution.at_rows, number):
                break
            share, former = share if bound > former else max(share / 2, SHORTEST), bound
            target = sites_at(self.likelihood, solution.at_rows, variance, kept.y)
            sites = sites.towards(target, share)
        with finish_first():
            self.absorb(problem, solution)
            if len(held):
                self.score(held)
                self.sweep_once(self.add(self.as_gaussian(parts.held, held)))

    def as_gaussian(self, table: Table, rows: Rows) -> Table:
        """Return rows with the targets and noise of their sites."""
        marginals = self.mean(rows.x), self.variance(rows.x)
        return self._table(table, sites_at(self.likelihood, *marginals, rows.y))

    def stream_error(self, rows: Rows) -> float:
        """Return the error on rows that were not learnt from, relative to their variance."""
        mean, _ = predictive_moments(self.likelihood, self.mean(rows.x), self.variance(rows.x))
        return nmse(mean, rows.y)

    @torch.no_grad()
    def score(self, rows: Rows) -> None:
        """Set the factor on the latent variance, and scores for conformal intervals, by new rows."""
        if len(rows) < FEWEST_SCORES or self.n_rows <= EXACT_ROWS:
            return
        mean, variance = self.mean(rows.x), self.variance(rows.x)
        marginals = (self.likelihood, mean, variance, rows.y)
        factor = calibrate_latent(*marginals, likelihood_too=False)
        y_mean, y_variance = predictive_moments(self.likelihood, mean, factor * variance)
        scores = ((rows.y - y_mean).abs() / y_variance.sqrt()).numpy()
        self.calibration = Calibration(factor.numpy(), None, np.sort(scores, axis=0))
        self.changed()

    def learn_again(self) -> None:
        """Learn the kernel from all sites."""
        learn_hyperparameters(self.kernel, None, self.cell_rows(), rng=self.rng, again=True)

    def bound(self, rows: Rows, values: Float[Tensor, "n p"], norm: Float[Tensor, " p"]) -> float:
        """Return the bound with the mean's values at rows, scaled to all, and its squared norm aᵀKa."""
        return self._bound(rows, values, self.variance(rows.x), norm)

    @torch.no_grad()
    def _bound(self, rows: Rows, mean: Tensor, variance: Tensor, norm: Tensor) -> float:
        fit = expected_log_prob(self.likelihood, mean, variance, rows.y).mean(0) * self.n_rows
        return float((fit - self.cov_kl - 0.5 * norm / self.kernel.outputscale).sum())

    def _first_sites(self, table: Table, clock: Clock) -> tuple[Rows, Sites]:
        """Learn a first kernel; return the rows and sites to start from.

        Targets that are f plus noise are taken for Gaussian ones, outliers drawn in; others get the
        sites of the best constant f.
        """
        rows = self.rows(table)
        if is_location_scale(self.likelihood):
            low, middle, high = np.quantile(rows.y.numpy(), [0.25, 0.5, 0.75], axis=0)
            reach = OUTLIER * (high - low) + 1e-9
            y = torch.from_numpy(np.clip(rows.y.numpy(), middle - reach, middle + reach))
            gaussian = gaussian_likelihood(self.n_outputs).to(rows.y)
            self.learn(Rows(rows.x, y, rows.weights, rows.known), gaussian, clock)
            sites = Sites(y, gaussian.noise.detach().reshape(-1).expand(y.shape).clone())
        else:
            constant = best_constant(self.likelihood, rows.y).expand(rows.y.shape)
            sites = sites_at(self.likelihood, constant, torch.ones_like(rows.y), rows.y)
            self.learn(self._with(rows, sites), None, clock)
        return self.rows(table), sites

    def _learn_likelihood(self, kept: Rows, mean: Tensor, variance: Tensor, held: Rows) -> None:
        """Learn the likelihood's parameters, from rows held out if there are any."""
        if len(held):
            new = (self.mean(held.x), self.variance(held.x), held.y)
            calibrate_latent(self.likelihood, *new, likelihood_too=True)
        else:
            fit_likelihood(self.likelihood, mean, variance, kept.y)

    def _put(self, problem: MeanProblem, rows: Rows) -> None:
        """Give the problem's rows these sites."""
        noise = self.relative_noise(rows)
        if problem.x is None:
            problem.targets, problem.noise = rows.y, noise
            self.cells.targets = self.y_scaler.inverse(rows.y.numpy())
            self.cells.known = rows.known.numpy() * self.y_scaler.scale**2
            return
        assert problem.cell is not None
        problem.y, problem.row_noise = rows.y, noise
        zeros = torch.zeros_like(problem.targets)
        precision = zeros.index_add(0, problem.cell, 1 / noise)
        problem.noise = 1 / precision
        problem.targets = zeros.index_add(0, problem.cell, rows.y / noise) / precision

    def _table(self, table: Table, sites: Sites) -> Table:
        """Return the table with sites in the units of the targets."""
        targets = self.y_scaler.inverse(sites.targets.numpy())
        known = sites.variances.numpy() * self.y_scaler.scale**2
        return Table(table.X, targets, table.weights, known)

    def _with(self, rows: Rows, sites: Sites) -> Rows:
        return Rows(rows.x, sites.targets, rows.weights, sites.variances)


def _settled(before: Tensor | None, after: Tensor, number: int) -> bool:
    """Whether a round has changed the mean by little."""
    if before is None or number < max(LEARN_AGAIN):
        return False
    return float((after - before).norm()) < CONVERGED * float(after.norm())
