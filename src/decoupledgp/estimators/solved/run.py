"""Learning from a table under Gaussian noise, from scratch.

Hyper-parameters from the evidence of neighbourhoods, the mean by sweeps, the covariance in closed form,
variances calibrated on rows held out, which join in the end.
"""

from __future__ import annotations

import logging
import time
import warnings
from typing import NamedTuple

import numpy as np
import torch
from gpytorch.likelihoods import GaussianLikelihood
from jaxtyping import Float, Int
from torch import Tensor

from decoupledgp.bases import PointBasis
from decoupledgp.data import Standardizer, Warp
from decoupledgp.estimators.interrupt import finish_first
from decoupledgp.estimators.solved.model import (
    EXACT_ROWS,
    FEWEST_SCORES,
    HELD_OUT_MOST,
    Clock,
    Follow,
    Table,
)
from decoupledgp.estimators.solved.stream import SWEEPS_EXPECTED, SolvedStream
from decoupledgp.kernels import smoothness
from decoupledgp.learners.gradient import nmse
from decoupledgp.solvers import MeanProblem, MeanSolution, Rows, learn_hyperparameters, solve_mean
from decoupledgp.solvers.cells import nearest
from decoupledgp.solvers.neighbourhoods import coordinates
from decoupledgp.solvers.selection import choose
from decoupledgp.solvers.shares import Share, best_share
from decoupledgp.solvers.sweeps import BLOCK, product_by_rows

__all__ = ["Parts", "SolvedRun"]

log = logging.getLogger("decoupledgp")

MOST_ROWS = 1 << 19
"""Rows of a table that are learnt from; of a larger one, random ones."""

HELD_OUT_SHARE = 0.1
"""Share of the rows that calibrate the variances before the mean learns from them too."""

FEWEST_HELD_GROUPS = 2
"""Groups that are held out, at least, if they are not more than half of the rows."""

HYPERPARAMETERS_SHARE, MEAN_SHARE = 0.4, 0.7
"""Shares of `max_seconds`: for the hyper-parameters, and of what is left then for the mean."""

GROUPED_MEAN_SHARE, REFINED_MEAN_SHARE = 0.5, 0.95
"""The latter where whole groups join in the end, which takes another sweep; and where rows share functions,
which leaves next to nothing to do in the end."""

MOST_WORK, OUTPUT_WORK = 5e10, 0.3
"""Entries of kernel matrices that `fit` computes by default, about, which takes two minutes on two cores;
every further output makes one dearer by so much."""

SMALLEST_SCALE = 1e-140
"""Of targets, whose squares are kept in their units."""

TIMED_PRODUCTS = 5
"""Small products whose fastest says how much work a time limit allows: single ones vary by half."""

PRODUCTS_EXPECTED = 4
"""Products with K_Xα by which M_α is chosen for a time limit where rows share functions."""


class Parts(NamedTuple):
    """A table's rows that are learnt from first, and those that are held out until the end."""

    kept: Table
    held: Table
    whole: Table | None = None
    """All rows, if those held out are whole groups: kernel and noise need to have seen their like."""
    groups: Int[np.ndarray, " n"] | None = None
    """The groups of all rows then."""
    kept_groups: Int[np.ndarray, " n"] | None = None
    """The groups of the rows that are learnt from first."""


class SolvedRun(SolvedStream):
    """Learns from a table, then from further rows."""

    def fit(
        self, table: Table, follow: Follow, groups: Int[np.ndarray, " n"] | None = None
    ) -> None:
        """Learn from a table, from scratch. `follow` is told of every step and may end the work.

        Rows with the same number in `groups` are held out together, or not at all.
        Time O(N_used M_α D) per step, after O(48 · 256³) per step of the hyper-parameters; memory
        O(N_used (D + P) + M_α P + P M_β²).
        """
        clock = Clock(self.sizes.max_seconds)
        if len(table) > MOST_ROWS:
            log.info("%s random rows of %s are learnt from", f"{MOST_ROWS:,}", f"{len(table):,}")
            some = self.rng.choice(len(table), MOST_ROWS, replace=False)
            table, groups = table.take(some), None if groups is None else groups[some]
        self.weight_unit = self.typical_weight(table)
        table = self.in_weight_units(table)
        self.n_rows = len(table)
        self.x_scaler = Standardizer(table.X)
        if self.standardises_targets:
            self.y_scaler = Standardizer(table.Y)
            _require_range(self.y_scaler.scale)
        held = self._held_out(len(table), groups)
        order = self.rng.permutation(len(table))
        whole = table if self.grouped else None
        kept, held_out = (table.take(order[part[order]]) for part in (~held, held))
        parts = Parts(kept, held_out, whole)
        if self.grouped and groups is not None:
            parts = parts._replace(groups=groups, kept_groups=groups[order[~held[order]]])
        self.solve(parts, clock, follow)
        self.solved_rows = self.learnt_rows = self.n_rows
        self.seconds = clock.seconds

    def _held_out(self, n_rows: int, groups: Int[np.ndarray, " n"] | None) -> np.ndarray:
        """Return which rows calibrate the variances, whole groups if given; the exact GP needs none."""
        held, self.grouped = np.zeros(n_rows, dtype=bool), False
        if n_rows <= EXACT_ROWS:
            return held
        if groups is not None:
            held = self._held_out_groups(groups)
            self.grouped = bool(held.sum() >= FEWEST_SCORES)
            if not self.grouped:
                few = f"without the largest they have {held.sum()} rows"
                warnings.warn(f"rows are held out at random, not by groups: {few}", stacklevel=2)
                held[:] = False
        if not self.grouped:
            count = min(int(HELD_OUT_SHARE * n_rows), HELD_OUT_MOST)
            held[self.rng.choice(n_rows, count, replace=False)] = True
        return held

    def _held_out_groups(self, groups: Int[np.ndarray, " n"]) -> np.ndarray:
        """Return the rows of random groups, half of all rows at most."""
        numbers, sizes = np.unique(groups, return_counts=True)
        chosen: list[int] = []
        taken = 0
        for k in self.rng.permutation(len(numbers)):
            if taken >= HELD_OUT_SHARE * len(groups) and len(chosen) >= FEWEST_HELD_GROUPS:
                break
            if taken + sizes[k] <= len(groups) / 2:
                chosen.append(k)
                taken += sizes[k]
        return np.isin(groups, numbers[chosen])

    def typical_weight(self, table: Table) -> float:
        """Return the weight that the learnt noise is of: only ratios of weights matter."""
        return float(np.exp(np.log(table.weights).mean()))

    def solve(self, parts: Parts, clock: Clock, follow: Follow) -> None:
        """Find hyper-parameters, mean, covariance and calibration."""
        self.learn(self.rows(parts.whole or parts.kept), self.likelihood, clock, parts.groups)
        kept = self.rows(parts.kept)
        share = self.share(kept, clock)
        parts, kept = self.thin(parts, share), kept.take(slice(share.rows))
        held = self.rows(parts.held.take(slice(HELD_OUT_MOST)))
        problem = self.gather(parts.kept, kept, share.functions)
        self.rebuild(problem)
        self.say_sizes()
        watch = (held.x, held.y) if len(held) else None
        fitted = self.cell_rows() if problem.x is None else kept
        stopped = False

        def followed(solution: MeanSolution) -> bool:
            nonlocal stopped
            with finish_first():
                self.set_mean(solution.a)
                self.iteration += 1
                self.seconds = clock.seconds
                errors = (solution.watched, watch[1]) if watch else (solution.at_rows, fitted.y)
                bound = self.bound(fitted, solution.at_rows, solution.norm)
                record = self.record(bound, nmse(*errors))
            stopped = follow(record)
            return stopped

        solution = solve_mean(
            problem,
            rng=self.rng,
            watch=watch,
            seconds=self._mean_seconds(problem, clock),
            follow=followed,
        )
        if problem.x is None and not stopped:
            followed(solution)  # the last sweep is none of the steps
        with finish_first():
            self.set_mean(solution.a)
            self.absorb(problem, solution)
            if watch:
                self.score(held)
                values = torch.cat([solution.at_centres, solution.watched])
                self.join_held(problem, parts.held, len(kept), values)

    def join_held(
        self,
        problem: MeanProblem,
        held: Table,
        n_kept: int,
        values: Tensor | None = None,
    ) -> None:
        """Let the mean take up rows that were held out; `values` are the mean's there, if known.

        Whole groups may lie where no rows were: they get as many cells as other rows have, and two sweeps.
        Others are worth one, or none if they share cells with many.
        """
        most = -(-len(self.cells) * (n_kept + len(held)) // n_kept)
        touched = self.add(held, merges=self.grouped, most=most if self.grouped else None)
        if self.grouped:
            self.sweep_once(touched)
        elif problem.x is not None:
            self.replace_mean(self.problem(), touched.a)
        else:
            values = None if values is None else values[: len(self.cells)]
            self.sweep_once(touched, values, plan="g")

    def learn(
        self,
        rows: Rows,
        likelihood: GaussianLikelihood | None,
        clock: Clock,
        groups: Int[np.ndarray, " n"] | None = None,
    ) -> None:
        """Learn kernel and noise, and whether skewed inputs are warped from now on."""
        warp = None
        wanted = self.sizes.warp_inputs
        if wanted or (wanted is None and self.given_kernel is None):
            warp = Warp.fit(rows.x.numpy(), self.rng)
        others = []
        if warp is not None:
            warped = torch.from_numpy(warp(rows.x.numpy()))
            others = [Rows(warped, rows.y, rows.weights, rows.known)]
        if self.sizes.warp_inputs and others:
            rows, others = others[0], []
        chosen = learn_hyperparameters(
            self.kernel,
            likelihood,
            rows,
            rng=self.rng,
            others=others,
            apart=self.grouped,
            groups=groups,
            choose_smoothness=self.sizes.choose_smoothness,
            seconds=HYPERPARAMETERS_SHARE * clock.left,
        )
        if self.sizes.choose_smoothness:
            log.info("the kernel's smoothness is %g", smoothness(self.kernel.base_kernel))
        if chosen or (self.sizes.warp_inputs and warp is not None):
            self.x_scaler.warp = warp
            log.info("skewed inputs are warped")

    def share(self, rows: Rows, clock: Clock) -> Share:
        """Return how many of the rows to learn from, with how many functions."""
        work, most = self._work(rows.x, clock), min(len(rows), self.most_mean)
        share = Share(len(rows), min(most, _functions(work, len(rows))))
        alone = int(min(most, (work / SWEEPS_EXPECTED) ** 0.5))
        if alone > share.functions:  # leaving rows out would pay for more functions
            counts = [*(alone << k for k in range(20) if alone << k < len(rows)), len(rows)]
            shares = [Share(n, min(n, most, _functions(work, n))) for n in counts]
            affordable = [share for share in shares if _work_of(share) <= 1.01 * work]
            noise = 1 / (1 / self.relative_noise(rows)).mean(0)  # a row adds precision
            share = best_share(self.kernel, rows.x, noise, affordable or shares[:1])
        if share.rows < len(rows):
            log.info("%s random rows of %s are learnt from", f"{share.rows:,}", f"{len(rows):,}")
        return share

    def say_sizes(self) -> None:
        """Write down how many rows and functions there are."""
        sizes = (self.n_rows, self.posterior.n_mean, self.posterior.n_cov)
        texts = (f"{size:,}" for size in sizes)
        log.info("%s rows, %s functions for the mean, %s for the covariance", *texts)

    def thin(self, parts: Parts, share: Share) -> Parts:
        """Return as many rows as there is work for; of groups held out, as many in proportion."""
        n_kept, n_held = len(parts.kept), len(parts.held)
        if self.grouped:
            n_held = -(-n_held * share.rows // n_kept)
        thinned = Parts(parts.kept.take(slice(share.rows)), parts.held.take(slice(n_held)))
        self.n_rows -= n_kept + len(parts.held) - share.rows - n_held
        return thinned  # they are in random order

    def gather(self, table: Table, rows: Rows, n_functions: int) -> MeanProblem:
        """Make the cells: a row each, or the surroundings of as many as there are functions."""
        if n_functions == len(rows):
            self.cells.append(table.X, table.Y, table.weights, table.known)
            return self.problem()
        places = coordinates(self.kernel, rows.x)
        how = self.sizes.basis_choice
        chosen = choose(self.kernel.base_kernel, places, rows.x, n_functions, how, self.rng)
        first = table.take(chosen)
        self.cells.append(first.X, first.Y, first.weights, first.known)
        cell = self._share_cells(table, places.numpy(), chosen)
        problem = self.problem()
        problem.x, problem.y, problem.cell = rows.x, rows.y, torch.from_numpy(cell)
        problem.row_noise = self.relative_noise(rows)
        return problem

    def _share_cells(self, table: Table, places: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Let all rows join the nearest of those chosen, and move centres to the middle of their rows."""
        cell = nearest(places, places[chosen])
        used, cell = np.unique(cell, return_inverse=True)  # a repeated row leaves its twin empty
        self.cells.keep(used)
        self.cells.clear()  # the centres' own rows are among those that join
        self.cells.join(cell, table.Y, table.weights, table.known, self._learnt_noise())
        sums = np.zeros((len(used), table.X.shape[1]))
        np.add.at(sums, cell, table.X)
        self.cells.centres = sums / np.bincount(cell)[:, None]
        self.joined_rows = len(table)
        return cell

    def _work(self, x: Tensor, clock: Clock) -> float:
        """Return how many entries of kernel matrices may be computed in the time that is left."""
        if not np.isfinite(clock.limit):
            given = self.sizes.n_mean_basis is not None
            return np.inf if given else MOST_WORK / (1 + OUTPUT_WORK * (self.n_outputs - 1))
        some = x[torch.arange(2048) % len(x)]
        functions = PointBasis(some).at(self.kernel.base_kernel).double()
        rate = 0.0
        for _ in range(TIMED_PRODUCTS):
            begin = time.perf_counter()
            product_by_rows(functions, some, some.new_ones(2048, self.n_outputs))
            rate = max(rate, 2048**2 / (time.perf_counter() - begin))
        return max(self.mean_share * clock.left, 0.1) * rate

    def _mean_seconds(self, problem: MeanProblem, clock: Clock) -> float:
        """Return how long the mean may take, its functions once chosen."""
        refined = problem.x is not None and not self.grouped
        return (REFINED_MEAN_SHARE if refined else self.mean_share) * clock.left

    @property
    def mean_share(self) -> float:
        """Share of the time that is left for the mean, once kernel and noise are known."""
        return GROUPED_MEAN_SHARE if self.grouped else MEAN_SHARE

    def absorb(self, problem: MeanProblem, solution: MeanSolution) -> None:
        """Give cells of several rows the targets to which the solution for those rows is the answer."""
        if problem.x is not None:
            targets = solution.at_centres + problem.noise * solution.a
            self.cells.targets = self.y_scaler.inverse(targets.numpy())


def _require_range(scale: Float[np.ndarray, " p"]) -> None:
    """Raise a ValueError if variances in the units of y would leave floating point."""
    extreme = scale[(scale < SMALLEST_SCALE) | (scale > 1 / SMALLEST_SCALE)]
    if len(extreme):
        raise ValueError(
            f"y has a standard deviation of {extreme[0]:.3g}, whose square is not a number; use other units"
        )


def _work_of(share: Share) -> float:
    """Return how many entries of kernel matrices a share takes."""
    products = 0 if share.rows == share.functions else PRODUCTS_EXPECTED * share.rows
    return share.functions * (SWEEPS_EXPECTED * share.functions + products)


def _functions(work: float, n_rows: int) -> int:
    """Return how many functions can be solved for with so many entries of kernel matrices."""
    if n_rows**2 <= work / SWEEPS_EXPECTED:
        return n_rows
    # m (S m + R n) = work, for R products with all rows beside the sweeps
    half = 0.5 * PRODUCTS_EXPECTED * n_rows / SWEEPS_EXPECTED
    return max(BLOCK // 2, int((half**2 + work / SWEEPS_EXPECTED) ** 0.5 - half))
