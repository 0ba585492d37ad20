"""A model under Gaussian noise that is solved for, not climbed to: the default of `DecoupledGPRegressor`.

Hyper-parameters from the evidence of neighbourhoods, the mean by sweeps, the covariance in closed form,
variances calibrated on rows held out (or, in a stream, on rows before they are learnt from).
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from decoupledgp.bases import Basis, PointBasis
from decoupledgp.data import Standardizer
from decoupledgp.estimators.interrupt import finish_first
from decoupledgp.estimators.state import State
from decoupledgp.kernels import prior_diagonal
from decoupledgp.learners.gradient import nmse
from decoupledgp.posteriors import DecoupledPosterior
from decoupledgp.solvers import (
    Cells,
    MeanProblem,
    MeanSolution,
    calibrate,
    learn_hyperparameters,
    solve_covariance,
    solve_mean,
)
from decoupledgp.solvers.cells import nearby, nearest
from decoupledgp.solvers.hyperparameters import coordinates
from decoupledgp.solvers.mean import correct_block
from decoupledgp.solvers.sweeps import BLOCK, product_by_rows

__all__ = ["Sizes", "SolvedRun"]

log = logging.getLogger("decoupledgp")

MOST_MEAN = 1 << 16
"""M_α by default, if there are as many rows."""

MOST_COV = 512
"""M_β by default, if there are more rows than the exact posterior takes."""

EXACT_ROWS = 1024
"""Up to so many rows the covariance has a function for each: the exact GP."""

MOST_ROWS = 1 << 19
"""Rows of a table that are learnt from; of a larger one, random ones."""

HELD_OUT_SHARE, HELD_OUT_MOST = 0.1, 2000
"""Rows that calibrate the variances before the mean learns from them too."""

GROWTH = 1.25
"""A stream's mean is solved for as a whole again when the rows have grown by this factor since."""

TOGETHER, NEIGHBOURS = 128, 256
"""New rows that are solved for at once, and how many neighbours each brings at most."""

FADED, SMALLEST_COUNT = 0.05, 1e-12
"""A cell whose rows count for less than the first is given away; none counts for less than the second."""

FEWEST_SCORES = 100
"""Residuals below which variances are left as the model has them."""

HYPERPARAMETERS_SHARE, MEAN_SHARE = 0.4, 0.7
"""Shares of `max_seconds`: for the hyper-parameters, and of what is left then for the mean."""

SWEEPS_EXPECTED, PRODUCTS_EXPECTED = 10, 4
"""Products with K_α and, where rows share functions, with K_Xα by which M_α is chosen for a time limit."""

COPIED = ("x_scaler", "y_scaler", "cells", "history", "rng")
"""What is written to in place while a stream goes on."""

Follow = Callable[[dict[str, Any]], bool]


@dataclass(frozen=True)
class Sizes:
    """What the constructor was given; None is for us to choose."""

    n_mean_basis: int | None = None
    n_cov_basis: int | None = None
    max_seconds: float | None = None
    half_life: float | None = None


class SolvedRun(State):
    """Cells, hyper-parameters and the solution for them, in float64."""

    posterior: DecoupledPosterior
    likelihood: GaussianLikelihood

    def __init__(
        self,
        sizes: Sizes,
        *,
        n_features: int,
        n_outputs: int,
        kernel: Kernel | None,
        likelihood: GaussianLikelihood | None,
        rng: np.random.Generator,
    ):
        super().__init__(
            n_features=n_features,
            n_outputs=n_outputs,
            kernel=kernel,
            likelihood=likelihood,
            dtype=torch.float64,
            device=torch.device("cpu"),
        )
        self.sizes, self.rng = sizes, rng
        self.cells = Cells(n_features, n_outputs)
        self.residuals, self.latent = np.zeros((0, n_outputs)), np.zeros((0, n_outputs))
        self.solved_rows, self.learnt_rows, self.joined_rows = 0, 0, 0
        self.cov_bound = torch.zeros(n_outputs, dtype=self.dtype)
        self.likelihood = self.own_likelihood()
        no_rows = torch.empty(0, n_features, dtype=self.dtype)
        self._install(PointBasis(no_rows), PointBasis(no_rows), self.own_kernel())
        self.posterior.mean_basis.at(self.posterior.kernel.base_kernel)  # raises if it does not fit

    def modules(self) -> torch.nn.ModuleDict:
        """Return everything with parameters."""
        return torch.nn.ModuleDict({"posterior": self.posterior, "likelihood": self.likelihood})

    @property
    def kernel(self) -> ScaleKernel:
        """The kernel with one scale per output."""
        return self.posterior.kernel

    def fit(self, X: np.ndarray, Y: np.ndarray, follow: Follow) -> None:
        """Learn from a table, from scratch. `follow` is told of every step and may end the work.

        Time O(N_used M_α D) per step, after O(48 · 256³) per step of the hyper-parameters; memory
        O(N_used (D + P) + M_α P + P M_β²).
        """
        clock = _Clock(self.sizes.max_seconds)
        if len(X) > MOST_ROWS:
            log.info("%s random rows of %s are learnt from", f"{MOST_ROWS:,}", f"{len(X):,}")
            some = self.rng.choice(len(X), MOST_ROWS, replace=False)
            X, Y = X[some], Y[some]
        self.n_rows = len(X)
        self.x_scaler, self.y_scaler = Standardizer(X), Standardizer(Y)
        order = self.rng.permutation(len(X))
        n_held = _n_held_out(len(X))
        held, kept = order[:n_held], order[n_held:]
        x, y = self.tensors(X, Y)
        learn_hyperparameters(
            self.kernel,
            self.likelihood,
            x[kept],
            y[kept],
            rng=self.rng,
            out_of_time=lambda: clock.seconds > HYPERPARAMETERS_SHARE * clock.limit,
        )
        problem = self._gather(X, Y, x, y, kept, clock)
        self._rebuild(problem)
        watch = (x[held], y[held]) if n_held else None
        fitted = problem.targets if problem.y is None else problem.y
        stopped = False

        def followed(solution: MeanSolution) -> bool:
            nonlocal stopped
            with finish_first():
                self._set_mean(solution.a)
                self.iteration += 1
                self.seconds = clock.seconds
                errors = (solution.watched, watch[1]) if watch else (solution.at_rows, fitted)
                record = self.record(self._bound(fitted, solution), nmse(*errors))
            stopped = follow(record)
            return stopped

        left = clock.limit - clock.seconds
        solution = solve_mean(
            problem, rng=self.rng, watch=watch, seconds=MEAN_SHARE * left, follow=followed
        )
        if problem.x is None and not stopped:
            followed(solution)  # the last sweep is none of the steps
        with finish_first():
            self._set_mean(solution.a)
            self._absorb(problem, solution)
            if watch:
                self._score(*watch)
                touched = self._add(X[held], Y[held])
                values = torch.cat([solution.at_centres, solution.watched])[: len(self.cells)]
                self._sweep_once(touched, values)
            self.solved_rows = self.learnt_rows = self.n_rows
            self.seconds = clock.seconds

    def more(self, X: np.ndarray, Y: np.ndarray, follow: Follow) -> bool:
        """Go on from further rows: predict them, keep what they say, correct the mean around them.

        A block solution per 128 rows, O(2,048 M_α D) each, or where that is less two sweeps over all
        cells; and when the rows have grown by a quarter a whole solution, O(M_α² D) per sweep. None of
        it grows with the rows that came before once the mean's basis is full. An error leaves
        everything as it was.
        """
        clock, before = _Clock(None), self._snapshot()
        try:
            with finish_first():
                record = self._learn_more(X, Y, clock)
        except BaseException:
            self._go_back(before)
            raise
        return follow(record)

    def _learn_more(self, X: np.ndarray, Y: np.ndarray, clock: _Clock) -> dict[str, Any]:
        self.x_scaler.update(X)
        self.y_scaler.update(Y)
        x, y = self.tensors(X, Y)
        predicted = self._predict(x)
        error = nmse(predicted, y)
        self._score(x, y)
        if self.sizes.half_life:
            self._fade(0.5 ** (len(X) / self.sizes.half_life))
        self.n_rows += len(X)
        touched = self._add(X, Y)
        since, weight = self.n_rows - self.solved_rows, float(self.cells.counts.sum())
        if since > (GROWTH - 1) * min(self.solved_rows, weight):
            self._solve_again(touched.a)
        elif len(touched.cells) * BLOCK > SWEEPS_EXPECTED * TOGETHER * len(self.cells):
            self._sweep_once(touched)
        else:
            self._correct(touched)
        self.iteration += 1
        self.seconds += clock.seconds
        return self.record(self._stream_bound(*self.tensors(X, Y)), error)

    def _snapshot(self) -> dict[str, Any]:
        """Return all that learning changes; arrays are replaced, not written to, but for these."""
        copied = {name: copy.deepcopy(getattr(self, name)) for name in COPIED}
        return {**self.__dict__, **copied, "modules": copy.deepcopy(self.modules().state_dict())}

    def _go_back(self, before: dict[str, Any]) -> None:
        modules = before.pop("modules")
        self.__dict__.update(before)
        self.modules().load_state_dict(modules)
        self.changed()

    @property
    def _most_mean(self) -> int:
        return self.sizes.n_mean_basis or MOST_MEAN

    def _ratio(self) -> Tensor:
        """σ²/ρ² of each output."""
        return (self._noise() / self.kernel.outputscale).detach()

    def _noise(self) -> Tensor:
        return self.likelihood.noise.reshape(-1).expand(self.n_outputs).detach()

    def _gather(
        self,
        X: np.ndarray,
        Y: np.ndarray,
        x: Tensor,
        y: Tensor,
        kept: np.ndarray,
        clock: _Clock,
    ) -> MeanProblem:
        """Make the cells: a row each, or the surroundings of as many random rows as there is room for."""
        m = min(len(kept), self._most_mean, self._affordable(x, clock))
        if m == len(kept):
            self.cells.append(X[kept], Y[kept])
            return self._problem()
        places = coordinates(self.kernel, x).numpy()
        cell = nearest(places[kept], places[kept[:m]])
        used, cell = np.unique(cell, return_inverse=True)  # a repeated row leaves its twin empty
        counts = np.bincount(cell).astype(float)
        sums = np.zeros((len(used), X.shape[1] + Y.shape[1]))
        np.add.at(sums, cell, np.column_stack([X[kept], Y[kept]]))
        means = sums / counts[:, None]
        self.cells.append(means[:, : X.shape[1]], means[:, X.shape[1] :])
        self.cells.counts, self.joined_rows = counts, len(kept)
        log.info("%s rows in %s cells", f"{len(kept):,}", f"{len(used):,}")
        problem = self._problem()
        problem.x, problem.y, problem.cell = x[kept], y[kept], torch.from_numpy(cell)
        return problem

    def _affordable(self, x: Tensor, clock: _Clock) -> int:
        """Return how many functions the time that is left can solve for."""
        if not np.isfinite(clock.limit):
            return len(x)
        some = x[torch.arange(2048) % len(x)]
        functions = PointBasis(some).at(self.kernel.base_kernel).double()
        for _ in range(2):  # the first call is slower
            begin = time.perf_counter()
            product_by_rows(functions, some, some.new_ones(2048, self.n_outputs))
            rate = 2048**2 / (time.perf_counter() - begin)
        left = max(MEAN_SHARE * (clock.limit - clock.seconds), 0.1) * rate
        every = int((left / SWEEPS_EXPECTED) ** 0.5)
        if every >= len(x):
            return len(x)
        # m (S m + R n) = left, for R products with all rows beside the sweeps
        half = 0.5 * PRODUCTS_EXPECTED * len(x) / SWEEPS_EXPECTED
        return max(BLOCK // 2, int((half**2 + left / SWEEPS_EXPECTED) ** 0.5 - half))

    def _problem(self) -> MeanProblem:
        """Return the cells' system at the present hyper-parameters."""
        centres, targets = self.tensors(self.cells.centres, self.cells.targets)
        return MeanProblem(
            functions=PointBasis(centres).at(self.kernel.base_kernel),
            centres=centres,
            targets=targets,
            counts=torch.from_numpy(self.cells.counts),
            ratio=self._ratio(),
            coordinates=coordinates(self.kernel, centres),
        )

    @torch.no_grad()
    def _rebuild(self, problem: MeanProblem) -> None:
        """Make a posterior with the cells' functions for the mean, and the optimal covariance."""
        if self.sizes.n_cov_basis is not None:
            n_cov = self.sizes.n_cov_basis
        else:
            n_cov = EXACT_ROWS if self.n_rows <= EXACT_ROWS else MOST_COV
        beta = PointBasis(problem.centres[:n_cov])  # the cells are in random order
        self._install(PointBasis(problem.centres), beta, self.kernel)
        x = problem.centres if problem.x is None else problem.x
        weights = problem.counts if problem.x is None else torch.ones(len(x), dtype=x.dtype)
        base = self.kernel.base_kernel
        solution = solve_covariance(
            beta.at(base), x, weights, 1 / self._ratio(), prior_diagonal(base, x)
        )
        self.posterior.cov_factor.copy_(solution.L)
        self.cov_bound = solution.bound

    def _install(self, mean: Basis, cov: Basis, kernel: Kernel) -> None:
        self.posterior = DecoupledPosterior(
            kernel,
            mean,
            cov,
            n_outputs=self.n_outputs,
            mean_preconditioner="none",
            cov_preconditioner="none",
        )
        self.changed()

    @torch.no_grad()
    def _set_mean(self, a: Tensor) -> None:
        """Put coefficients with y = Ka into the posterior, whose mean is ρ Ψa."""
        self.posterior.mean_coefficients.copy_(a / self.kernel.outputscale.sqrt())
        self.changed()

    @torch.no_grad()
    def _a(self) -> Tensor:
        return self.posterior.mean_coefficients * self.kernel.outputscale.sqrt()

    def _absorb(self, problem: MeanProblem, solution: MeanSolution) -> None:
        """Give cells of several rows the targets to which the solution for those rows is the answer."""
        if problem.x is not None:
            targets = solution.at_centres + problem.noise * solution.a
            self.cells.targets = self.y_scaler.inverse(targets.numpy())

    @torch.no_grad()
    def _predict(self, x: Tensor) -> Tensor:
        functions = self.posterior.mean_basis.at(self.kernel.base_kernel).double()
        return product_by_rows(functions, x, self._a())

    @torch.no_grad()
    def _score(self, x: Tensor, y: Tensor) -> None:
        """Compare predictions with targets not learnt from yet; calibrate with the latest of them."""
        q = self.posterior.measure(double=True)
        latent = torch.cat([q.variance(part) for part in x.split(1024)]).numpy()
        residuals = (y - self._predict(x)).numpy()
        most = min(HELD_OUT_MOST, max(self.n_rows // 2, len(x)))  # early ones are of a poorer model
        self.residuals = np.concatenate([self.residuals, residuals])[-most:]
        self.latent = np.concatenate([self.latent, latent])[-most:]
        self._calibrate()

    @torch.no_grad()
    def _add(self, X: np.ndarray, Y: np.ndarray) -> Touched:
        """Make cells of rows while there is room, and let the others join the nearest."""
        old = len(self.cells)
        room = max(self._most_mean - old, 0)
        joined = np.arange(0)
        if len(X) > room:
            x, y = self.tensors(X[room:], Y[room:])
            centres = self.posterior.mean_basis.locations.detach()
            places = coordinates(self.kernel, centres).numpy()
            index = nearest(coordinates(self.kernel, x).numpy(), places)
            targets = y - self._predict(x) + self._predict(centres[index])
            self.cells.join(index, self.y_scaler.inverse(targets.numpy()))
            self.joined_rows += len(index)
            joined = np.unique(index)
        self.cells.append(X[:room], Y[:room])
        a = self._a()
        a = torch.cat([a, a.new_zeros(len(self.cells) - old, self.n_outputs)])
        return Touched(a, np.concatenate([joined, np.arange(old, len(self.cells))]))

    def _correct(self, touched: Touched) -> None:
        """Solve around new rows: each group of them together with its nearest cells."""
        problem, a = self._problem(), touched.a.clone()
        places = problem.coordinates
        for group in np.array_split(touched.cells, -(-len(touched.cells) // TOGETHER)):
            own = places[torch.from_numpy(group)]
            near = nearby(own, places, min(BLOCK // len(group), NEIGHBOURS))
            correct_block(problem, a, torch.from_numpy(np.union1d(group, near)))
        self._replace_mean(problem, a)

    def _sweep_once(self, touched: Touched, values: Tensor | None = None) -> None:
        """Let a sweep over all cells take up what was added; `values` are the mean's there, if known."""
        problem = self._problem()
        sweeps = problem.sweeps(self.rng)
        sweeps.start_from(touched.a, values)
        sweeps.run("g" if sweeps.is_one_block else "Lg")
        self._replace_mean(problem, sweeps.a)

    @torch.no_grad()
    def _replace_mean(self, problem: MeanProblem, a: Tensor) -> None:
        """Change the mean's functions and coefficients; the covariance stays."""
        L, beta = self.posterior.cov_factor.detach(), self.posterior.cov_basis
        self._install(PointBasis(problem.centres), beta, self.kernel)
        self.posterior.cov_factor.copy_(L)
        self._set_mean(a)

    def _fade(self, share: float) -> None:
        """Let the past count for less. Cells that hardly count are given away by the next solution."""
        self.cells.counts = np.maximum(self.cells.counts * share, SMALLEST_COUNT)

    def _standardise_again(self) -> None:
        """Fix all scales by the rows so far; residuals that were kept change their units with them."""
        former = self.y_scaler.scale
        self.x_scaler = Standardizer(self.cells.centres)
        self.y_scaler = Standardizer(self.cells.targets)
        change = former / self.y_scaler.scale
        self.residuals, self.latent = self.residuals * change, self.latent * change**2
        self._calibrate()

    def _calibrate(self) -> None:
        if len(self.residuals) >= FEWEST_SCORES and self.n_rows > EXACT_ROWS:
            self.calibration = calibrate(self.residuals, self.latent)
        self.changed()

    def _solve_again(self, start: Tensor | None) -> None:
        """Solve for all cells from where they are; learn kernel and noise again when rows have doubled."""
        if not self.joined_rows and self.n_rows >= 2 * self.learnt_rows:
            self._standardise_again()
            x, y = self.tensors(self.cells.centres, self.cells.targets)
            few = self.learnt_rows < FEWEST_SCORES
            if few:  # what so few rows said is no place to start from
                kernel, self.likelihood = self.own_kernel(), self.own_likelihood()
                self._install(PointBasis(x), PointBasis(x[:0]), kernel)
            learn_hyperparameters(self.kernel, self.likelihood, x, y, rng=self.rng, again=not few)
            self.learnt_rows, start = self.n_rows, None
        order = self.rng.permutation(np.flatnonzero(self.cells.counts > FADED))
        self.cells.keep(order)
        problem = self._problem()
        self._rebuild(problem)
        start = None if start is None else start[torch.from_numpy(order)]
        self._set_mean(solve_mean(problem, rng=self.rng, start=start).a)
        self.solved_rows = self.n_rows

    def _bound(self, y: Tensor, solution: MeanSolution) -> float:
        """Return the bound on the rows learnt from; its likelihood scaled to those held out too."""
        noise, rho2 = self._noise(), self.kernel.outputscale.detach()
        fit = torch.log(2 * torch.pi * noise) + (y - solution.at_rows).square().mean(0) / noise
        fit = fit * self.n_rows
        return float((self.cov_bound - 0.5 * (fit + solution.norm / rho2)).sum())

    def _stream_bound(self, x: Tensor, y: Tensor) -> float:
        """Return the bound's estimate from a stream's latest rows; the mean's norm from the cells."""
        a = self._a()
        targets = torch.from_numpy(self.y_scaler.transform(self.cells.targets))
        counts = torch.from_numpy(self.cells.counts)[:, None]
        norm = (a * (targets - self._ratio() / counts * a)).sum(0)  # aᵀKa at the solution
        noise, rho2 = self._noise(), self.kernel.outputscale.detach()
        error = (y - self._predict(x)).square().mean(0)
        fit = self.n_rows * (torch.log(2 * torch.pi * noise) + error / noise)
        return float((self.cov_bound - 0.5 * (fit + norm / rho2)).sum())


class Touched(NamedTuple):
    """Coefficients of all cells, zero for new ones, and the cells that rows were added to."""

    a: Tensor
    cells: np.ndarray


class _Clock:
    """Seconds since it was made, and how many there may be."""

    def __init__(self, limit: float | None):
        self.start, self.limit = time.perf_counter(), np.inf if limit is None else limit

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.start


def _n_held_out(n_rows: int) -> int:
    """Return how many rows calibrate the variances; the exact GP needs none."""
    return 0 if n_rows <= EXACT_ROWS else min(int(HELD_OUT_SHARE * n_rows), HELD_OUT_MOST)
