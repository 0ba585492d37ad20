"""Learning under likelihoods other than Gaussian noise: Newton's method around the Gaussian solution.

Every round puts a Gaussian site in place of each row's likelihood, at the posterior as it is, and solves
for mean and covariance as under Gaussian noise. Kernel and likelihood are learnt again on the way.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from jaxtyping import Float, Int
from torch import Tensor

from decoupledgp.bases import PointBasis
from decoupledgp.estimators.interrupt import finish_first
from decoupledgp.estimators.solved.model import (
    EXACT_ROWS,
    FEWEST_SCORES,
    HELD_OUT_MOST,
    Clock,
    Follow,
    Sizes,
    Table,
)
from decoupledgp.estimators.solved.run import HYPERPARAMETERS_SHARE, Parts, SolvedRun
from decoupledgp.learners.gradient import nmse
from decoupledgp.likelihoods import (
    check_targets,
    expected_log_prob,
    gaussian_likelihood,
    is_location_scale,
    predictive_moments,
)
from decoupledgp.solvers import (
    Cells,
    MeanProblem,
    MeanSolution,
    Rows,
    learn_hyperparameters,
    solve_mean,
)
from decoupledgp.solvers.calibration import Calibration
from decoupledgp.solvers.neighbourhoods import coordinates
from decoupledgp.solvers.sites import (
    Marginals,
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
"""Rounds before which the kernel is learnt again, from the sites of that moment."""

CONVERGED = 1e-3
"""Stop when a round changes the mean by less than this share of its own size."""

SHORTEST = 0.1
"""A step after which the bound is lower makes the next ones half as long, down to this."""

OUTLIER = 3.0
"""For the first kernel, targets are drawn in to so many times the distance of the quartiles."""

TAILS = (0.25, 0.05, 0.01)
"""Quantiles whose distance says how far targets are spread: the next if so many are equal that it is zero."""

FIRST_ROWS = 256
"""A stream of no more rows is learnt from the beginning with every call."""


class SitesRun(SolvedRun):
    """The same as `SolvedRun` for any likelihood with one latent function per output.

    In a stream the site of a row is set when the row comes, and stays. `first` are the rows of a
    stream that has hardly begun, `new` the latest rows as they were predicted before they were learnt.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        n_features: int,
        n_outputs: int,
        kernel: Kernel | None,
        likelihood: Likelihood | None,
        rng: np.random.Generator,
    ):
        super().__init__(
            sizes,
            n_features=n_features,
            n_outputs=n_outputs,
            kernel=kernel,
            likelihood=likelihood,
            rng=rng,
        )
        self.first: Table | None = None
        none = torch.zeros(0, n_outputs, dtype=self.dtype)
        self.new = Marginals(none, none, none, none[:, 0])

    def noise(self) -> Float[Tensor, " p"]:
        """No noise but the sites' own."""
        return torch.zeros(self.n_outputs, dtype=self.dtype)

    def typical_weight(self, table: Table) -> float:
        """Return one: weights multiply log-likelihoods, and no learnt noise could make up for a factor."""
        return 1.0

    def fit(
        self, table: Table, follow: Follow, groups: Int[np.ndarray, " n"] | None = None
    ) -> None:
        """Learn from a table, from scratch."""
        check_targets(self.likelihood, torch.from_numpy(table.Y))
        few = len(table) <= FIRST_ROWS
        self.first = table.take(np.arange(len(table))) if few else None  # a copy
        super().fit(table, follow, groups)

    def solve(self, parts: Parts, clock: Clock, follow: Follow) -> None:
        """Find hyper-parameters, mean, covariance and calibration."""
        kept, sites = self._first_sites(parts.kept, clock, parts.kept_groups)
        n_rows, n_functions = share = self.share(self._with(kept, sites), clock)
        parts, kept, sites = (
            self.thin(parts, share),
            kept.take(slice(n_rows)),
            sites.take(slice(n_rows)),
        )
        held = self.rows(parts.held.take(slice(HELD_OUT_MOST)))
        rows = self._with(kept, sites)
        problem = self.gather(self._table(parts.kept, sites), rows, n_functions)
        self.rebuild(problem)
        self.say_sizes()
        a, length, former = None, 1.0, -np.inf
        for number in range(ROUNDS):
            before = None if a is None else self.mean(kept.x)
            rows = self._with(kept, sites)
            solution = self._round(problem, rows, a, clock, learn=number in LEARN_AGAIN)
            a = solution.a
            with finish_first():
                self.solve_covariance(problem)
                self.set_mean(a)
                now = Marginals(solution.at_rows, self.variance(kept.x), kept.y, kept.weights)
                self._learn_likelihood(now, held)
                self.iteration += 1
                self.seconds = clock.seconds
                bound = self._bound(now, solution.norm)
                y_mean, _ = predictive_moments(self.likelihood, now.mean, now.variance)
                record = self.record(bound, nmse(y_mean, kept.y))
            if follow(record) or clock.left < 0 or _settled(before, now.mean, number):
                break
            length, former = length if bound > former else max(length / 2, SHORTEST), bound
            target = sites_at(self.likelihood, now.mean, now.variance, kept.y)
            sites = sites.towards(target, length)
        with finish_first():
            self.absorb(problem, solution)
            if len(held):
                self.score(held)
                self.join_held(
                    problem, self.as_gaussian(parts.held, self.rows(parts.held)), len(kept)
                )

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
        """Set the factor on the latent variance, and scores for conformal intervals, by the latest rows."""
        latest = Marginals(self.mean(rows.x), self.variance(rows.x), rows.y, rows.weights)
        most = min(HELD_OUT_MOST, max(self.n_rows // 2, len(rows)))
        self.new = self.new.followed_by(latest, most)
        if len(self.new.y) < FEWEST_SCORES or self.n_rows <= EXACT_ROWS:
            return
        factor = calibrate_latent(self.likelihood, self.new, likelihood_too=True)
        variance = factor * self.new.variance
        y_mean, y_variance = predictive_moments(self.likelihood, self.new.mean, variance)
        scores = ((self.new.y - y_mean).abs() / y_variance.sqrt()).numpy()
        self.calibration = Calibration(factor.numpy(), None, np.sort(scores, axis=0))
        self.changed()

    def learn_again(self) -> None:
        """Learn the kernel from all sites."""
        rows = self.cell_rows()
        few = self.forget_few(rows)
        learn_hyperparameters(
            self.kernel,
            None,
            rows,
            rng=self.rng,
            apart=self.grouped,
            again=not few,
            choose_smoothness=self.sizes.choose_smoothness,
        )

    def bound(self, rows: Rows, values: Float[Tensor, "n p"], norm: Float[Tensor, " p"]) -> float:
        """Return the bound with the mean's values at rows, scaled to all, and its squared norm aᵀKa."""
        return self._bound(Marginals(values, self.variance(rows.x), rows.y, rows.weights), norm)

    def _learn_more(self, table: Table, clock: Clock) -> dict[str, Any]:
        check_targets(self.likelihood, torch.from_numpy(table.Y))
        if self.first is None or self.n_rows + len(table) > FIRST_ROWS:
            self.first = None
            return super()._learn_more(table, clock)
        parts = zip(vars(self.first).values(), vars(table).values(), strict=True)
        table = Table(*(np.concatenate(pair) for pair in parts))
        seconds, kernel, self.likelihood = self.seconds, self.own_kernel(), self.own_likelihood()
        self.cells = Cells(self.n_features, self.n_outputs)
        no_rows = torch.empty(0, self.n_features, dtype=self.dtype)
        self.install(PointBasis(no_rows), PointBasis(no_rows), kernel)
        self.fit(table, lambda record: False)
        self.seconds += seconds
        return self.history[-1]

    def _round(
        self, problem: MeanProblem, rows: Rows, a: Tensor | None, clock: Clock, *, learn: bool
    ) -> MeanSolution:
        """Solve for the mean with these sites; an interruption leaves kernel and cells as they were."""
        kernel, cells = copy.deepcopy(self.kernel.state_dict()), copy.copy(self.cells)
        try:
            left = HYPERPARAMETERS_SHARE * clock.limit - clock.seconds
            if learn and left > 0:
                learn_hyperparameters(
                    self.kernel,
                    None,
                    rows,
                    rng=self.rng,
                    apart=self.grouped,
                    again=True,
                    seconds=left,
                )
                problem.functions = self.posterior.mean_basis.at(self.kernel.base_kernel)
                problem.coordinates = coordinates(self.kernel, problem.centres)
            self._put(problem, rows)
            return solve_mean(problem, rng=self.rng, start=a, seconds=clock.left / ROUNDS)
        except BaseException:
            self.kernel.load_state_dict(kernel)
            self.cells = cells
            self.changed()
            raise

    @torch.no_grad()
    def _bound(self, rows: Marginals, norm: Float[Tensor, " p"]) -> float:
        """Σ w_n ℓ_n - KL, scaled from these rows to all."""
        fit = expected_log_prob(self.likelihood, rows.mean, rows.variance, rows.y)
        fit = (rows.weights[:, None] * fit).mean(0) * self.n_rows
        return float((fit - self.cov_kl - 0.5 * norm / self.kernel.outputscale).sum())

    def _first_sites(
        self, table: Table, clock: Clock, groups: Int[np.ndarray, " n"] | None
    ) -> tuple[Rows, Sites]:
        """Learn a first kernel; return the rows and sites to start from.

        Targets that are f plus noise are taken for Gaussian ones, outliers drawn in; others get the
        sites of the best constant f.
        """
        rows = self.rows(table)
        if is_location_scale(self.likelihood):
            middle, reach = np.median(rows.y.numpy(), axis=0), OUTLIER * _spread(rows.y.numpy())
            y = torch.from_numpy(np.clip(rows.y.numpy(), middle - reach, middle + reach))
            gaussian = gaussian_likelihood(self.n_outputs).to(rows.y)
            self.learn(Rows(rows.x, y, rows.weights, rows.known), gaussian, clock, groups)
            sites = Sites(y, gaussian.noise.detach().reshape(-1).expand(y.shape).clone())
        else:
            constant = best_constant(self.likelihood, rows.y, rows.weights).expand(rows.y.shape)
            sites = sites_at(self.likelihood, constant, torch.ones_like(rows.y), rows.y)
            self.learn(self._with(rows, sites), None, clock, groups)
        return self.rows(table), sites

    def _learn_likelihood(self, kept: Marginals, held: Rows) -> None:
        """Learn the likelihood's parameters, from rows held out if there are any."""
        if len(held):
            new = Marginals(self.mean(held.x), self.variance(held.x), held.y, held.weights)
            calibrate_latent(self.likelihood, new, likelihood_too=True)
        else:
            fit_likelihood(self.likelihood, kept)

    def _put(self, problem: MeanProblem, rows: Rows) -> None:
        """Give the problem's rows these sites, and its cells what follows from them."""
        noise = self.relative_noise(rows)
        if problem.x is None:
            problem.targets, problem.noise = rows.y, noise
        else:
            assert problem.cell is not None
            problem.y, problem.row_noise = rows.y, noise
            zeros = torch.zeros_like(problem.targets)
            precision = zeros.index_add(0, problem.cell, 1 / noise)
            problem.noise = 1 / precision
            problem.targets = zeros.index_add(0, problem.cell, rows.y / noise) / precision
        variance = (problem.noise * self.kernel.outputscale.detach()).numpy()
        self.cells.targets = self.y_scaler.inverse(problem.targets.numpy())
        self.cells.known = variance * self.y_scaler.scale**2 * self.cells.counts[:, None]

    def _table(self, table: Table, sites: Sites) -> Table:
        """Return the table with sites in the units of the targets."""
        targets = self.y_scaler.inverse(sites.targets.numpy())
        known = sites.variances.numpy() * self.y_scaler.scale**2
        return Table(table.X, targets, table.weights, known)

    def _with(self, rows: Rows, sites: Sites) -> Rows:
        return Rows(rows.x, sites.targets, rows.weights, sites.variances)


def _spread(y: Float[np.ndarray, "n p"]) -> Float[np.ndarray, " p"]:
    """Return the distance of the quartiles; where they are equal, of quantiles farther out."""
    spread = np.zeros(y.shape[1])
    for tail in TAILS:
        low, high = np.quantile(y, [tail, 1 - tail], axis=0)
        spread = np.where(spread > 0, spread, high - low)
    return np.where(spread > 0, spread, y.std(0) + 1e-9)


def _settled(before: Tensor | None, after: Tensor, number: int) -> bool:
    """Whether a round has changed the mean by little."""
    if before is None or number < max(LEARN_AGAIN):
        return False
    return float((after - before).norm()) < CONVERGED * float(after.norm())
