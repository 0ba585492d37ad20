"""Kernel and noise from the evidence of neighbourhoods at every density.

The evidence of random rows sees only structure that is longer than the distance between them. Here
the rows are thinned to N, N/4, N/16, … and groups of neighbours are taken at each density: the dense
ones tell about short structure and noise, the thin ones about long structure. The sum of their log
evidences, each an exact GP of one group, is climbed by L-BFGS.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from gpytorch.kernels import ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from jaxtyping import Int
from torch import Tensor

from decoupledgp.bases import PointBasis
from decoupledgp.kernels import radial_kernel
from decoupledgp.learners.batch import maximise
from decoupledgp.solvers.foresight import is_ahead, left_out_errors
from decoupledgp.solvers.neighbourhoods import (
    GROUP,
    GroupEvidence,
    Prior,
    coordinates,
    neighbourhoods,
    surroundings,
)
from decoupledgp.solvers.rows import Rows
from decoupledgp.solvers.starts import MARGIN, starts, tried
from decoupledgp.solvers.sweeps import block_solution

__all__ = ["learn_hyperparameters"]

GROUPS = 48
"""Neighbourhoods in all, for one output; fewer for several, each of which has factors of its own."""

FEWEST_GROUPS = 16
"""Neighbourhoods however short the time is; for fewer than that there is time, they are of SMALL_GROUP rows:
the evidence of a few groups is easily overfitted with many length-scales."""

SMALL_GROUP = 128

ROUNDS = (12, 25)
"""L-BFGS iterations with neighbours by the first length-scales, and with neighbours by those learnt."""

EVALUATIONS = 1.3
"""Of the evidence in an iteration of L-BFGS, about."""

NOISY_GROUP, NOISY_GROUPS_LESS = 1024, 8
"""Rows in a neighbourhood where most is noise, which fewer would not show a function through, and by how
much there are fewer of them."""

COMPARED = 6144
"""Random rows of which an exact GP learns from two thirds and predicts the others, to decide between ends
of climbs and units of the inputs, and on the smoothness where groups are held out; if time is limited it
learns from a quarter, fewer for several outputs."""

AHEAD = 0.95
"""Share of the error with the given units that other units must come below."""

EVIDENT, PER_EVIDENCE, TOLERATED = 0.05, 0.1, 0.01
"""Evidence per row and output by which shorter length-scales are ahead if that error does not speak against
them. For more, their error may be larger, since such rows may be too far apart; for less, it has to be
smaller: by so much of what the evidence is beyond, as a share of the error; larger by the last at most."""

SURE = 20.0
"""Evidence in all by which a shorter length-scale must be ahead: climbs on few rows overfit them."""

BEGIN_SHARE, SMOOTHNESS_SHARE, LEAST_LEFT = 0.6, 0.25, 0.25
"""Shares of the time for climbs from all starts, each of which gets the same, and with kernels of other
smoothness; the last one has the rest, and a quarter at least."""

TRIED_ROUND, TRIED_GROUPS = 6, 0.5
"""L-BFGS iterations with a kernel of another smoothness, and the share of the neighbourhoods for that."""

SMOOTHNESS_ROWS, SETTLED_ROWS = 100, 4096
"""Rows from which on the smoothness is chosen, and from which on it stays when a kernel is learnt again."""

FORETOLD_GROUPS, FORETOLD_ROWS = 64, 1 << 16
"""Rows whose surroundings tell which smoothness foretells them best, fewer for several outputs; and of how
many rows these are, random ones of larger tables."""

ROUGHER = 0.01
"""Share of the squared error by which a kernel must be ahead of a smoother one."""


def learn_hyperparameters(
    kernel: ScaleKernel,
    likelihood: GaussianLikelihood | None,
    rows: Rows,
    *,
    rng: np.random.Generator,
    others: Sequence[Rows] = (),
    apart: bool = False,
    groups: Int[np.ndarray, " n"] | None = None,
    again: bool = False,
    choose_smoothness: bool = False,
    seconds: float = np.inf,
) -> int:
    """Set kernel and noise from rows; `again` goes on from the values they have.

    With `choose_smoothness` the squared exponential in `kernel` gives way to a Matérn kernel of order
    5/2, 3/2 or 1/2 if that foretells rows better that are left out of their surroundings, or with `apart`
    rows of other groups.

    `others` are the same rows with inputs in other units: those are chosen with which an exact GP of
    some random rows predicts others best. Returns 0 for `rows`, or the number of the other, from 1.
    With `apart` the evidence is that of random rows: for rows in trajectories, of which neighbours
    share one, where new ones are to be predicted. Given the rows' `groups`, those others are of other
    groups than the rows that predict them.
    Without a likelihood all noise is the rows' known one. Parameters that do not require gradients
    stay. Time O(GROUPS · GROUP³ P) per iteration; where `seconds` are few, fewer and smaller groups.
    """
    candidates = [rows, *others]
    choose_smoothness = choose_smoothness and len(rows) >= SMOOTHNESS_ROWS
    if again and len(rows) >= SETTLED_ROWS:
        choose_smoothness = False
    climber = _Climber(
        Prior(kernel, likelihood), rng, seconds, candidates, apart, groups, choose_smoothness
    )
    chosen = 0 if again else climber.begin()
    if choose_smoothness:
        climber.choose_smoothness(candidates[chosen])
    climber.finish(candidates[chosen])
    return chosen


class _End(NamedTuple):
    """Where a climb ended: evidence per row, all parameters, and the error on rows held back, if known."""

    evidence: float
    values: list[Tensor]
    error: float = np.nan


class _Climber:
    """Climbs on the evidence of as many groups as there is time for."""

    def __init__(
        self,
        prior: Prior,
        rng: np.random.Generator,
        seconds: float,
        candidates: list[Rows],
        apart: bool,
        groups: Int[np.ndarray, " n"] | None,
        choose_smoothness: bool = False,
    ):
        self.prior, self.rng, self.candidates = prior, rng, candidates
        self.smoothness_is_open = choose_smoothness
        self.apart, self.groups = apart, groups
        self.limited, self.seconds = bool(np.isfinite(seconds)), seconds
        self.end = time.perf_counter() + seconds
        n_outputs = candidates[0].y.shape[1]
        self.count = max(GROUPS // n_outputs, GROUPS // 4)
        self.size = GROUP
        if self.limited:
            affordable = seconds / self._price()
            fewest = min(FEWEST_GROUPS, self.count)
            if affordable < fewest:
                self.size = SMALL_GROUP
                affordable *= (GROUP / SMALL_GROUP) ** 2
            self.count = int(np.clip(affordable, fewest, self.count))
        self.trial = self._trial()

    def begin(self) -> int:
        """Climb from all starts with each of the candidates, keep the best; return which it is."""
        share = -(-self.count // len(self.candidates) ** 2)  # all climb on those of all
        groups = [
            group
            for rows in self.candidates
            for group in self._neighbourhoods(rows.x, self.size, share)
        ]
        if all(len(group) == len(self.candidates[0]) for group in groups):
            groups = groups[:1]  # all rows, once
        first = self.prior.values()
        ends: list[_End] = []
        each = BEGIN_SHARE * self.seconds / (2 * len(self.candidates))
        n_outputs = self.candidates[0].y.shape[1]
        margin = max(MARGIN, SURE / (n_outputs * sum(len(group) for group in groups)))
        begun = time.perf_counter()
        for rows in self.candidates:
            if ends and time.perf_counter() - begun > BEGIN_SHARE * self.seconds:
                break  # the first took the time of all
            self.prior.set(first)
            smooth, short = (
                self._climb(rows, groups, ROUNDS[0], each, values)
                for values in starts(self.prior, rows, groups)
            )
            ends.append(self._sound(rows, smooth, short, margin))
        chosen = 0
        if len(ends) > 1:
            pairs = zip(self.candidates, ends, strict=False)
            errors = np.array([self._compared(rows, end).error for rows, end in pairs])
            errors[1:] /= AHEAD
            chosen = int(np.nanargmin(errors))
        self.prior.set(ends[chosen].values)
        return chosen

    def _sound(self, rows: Rows, smooth: _End, short: _End, margin: float) -> _End:
        """Return the short length-scales if they are sound: without structure they explain noise alone."""
        ahead = short.evidence - smooth.evidence
        if ahead <= margin:
            return smooth
        smooth, short = (self._compared(rows, end) for end in (smooth, short))
        tolerated = min(TOLERATED, PER_EVIDENCE * (ahead - EVIDENT))
        return short if short.error < (1 + tolerated) * smooth.error else smooth

    def choose_smoothness(self, rows: Rows) -> None:
        """Set the kernel among the squared exponential and Matérn ones that foretells the rows best.

        Order 3/2 is tried first, then the rougher one if it is ahead, else the one between.
        """
        kernel = self.prior.kernel
        places, count = coordinates(kernel, rows.x), max(int(self.count * TRIED_GROUPS), 1)
        groups = self._neighbourhoods(places, self.size, count)
        around = self._around(places)
        each = SMOOTHNESS_SHARE * self.seconds / 3
        ends: dict[float, _End] = {}
        errors: dict[float, np.ndarray] = {}

        def attempt(nu: float, start: list[Tensor]) -> None:
            kernel.base_kernel = radial_kernel(rows.x.shape[1], nu).to(rows.x)
            ends[nu] = self._climb(rows, groups, TRIED_ROUND, each, start)
            errors[nu] = self._foretold(rows, around)

        def best() -> float:
            chosen = np.inf
            for nu in sorted(errors, reverse=True):
                if is_ahead(errors[nu], errors[chosen], by=ROUGHER):
                    chosen = nu
            return chosen

        begun = time.perf_counter()
        attempt(np.inf, self.prior.values())
        attempt(1.5, ends[np.inf].values)
        if time.perf_counter() - begun < 3 * each:
            near = best()
            attempt(0.5 if near == 1.5 else 2.5, ends[near].values)
        chosen = best()
        kernel.base_kernel = radial_kernel(rows.x.shape[1], chosen).to(rows.x)
        self.prior.set(ends[chosen].values)

    def _around(self, places: Tensor) -> list[np.ndarray]:
        """Return groups to leave rows out of, as dense as the mean's functions will be at most."""
        if self.apart:
            return []
        n_outputs = self.candidates[0].y.shape[1]
        count = max(FORETOLD_GROUPS // n_outputs, FORETOLD_GROUPS // 4)
        pool = self.rng.permutation(len(places))[:FORETOLD_ROWS]
        groups = surroundings(places[torch.from_numpy(pool)], self.rng, count=count)
        return [pool[group] for group in groups]

    def _foretold(self, rows: Rows, around: list[np.ndarray]) -> np.ndarray:
        """Return squared errors on rows that the prior foretells: from others around, or of other groups."""
        if not self.apart:
            return left_out_errors(self.prior, rows, around)
        squares = self._trial_errors(rows).numpy()
        if self.groups is None:
            return squares
        _, number = np.unique(self.groups[self.trial[1]], return_inverse=True)
        sums = np.zeros((number.max() + 1, squares.shape[1]))
        np.add.at(sums, number, squares)
        return sums / np.bincount(number)[:, None]

    def finish(self, rows: Rows) -> None:
        """Climb on with neighbours by the length-scales learnt."""
        places = coordinates(self.prior.kernel, rows.x)
        left = max(self.end - time.perf_counter(), LEAST_LEFT * self.seconds)
        if self._is_noisy():
            count = max(self.count // NOISY_GROUPS_LESS, 1)
            groups = self._neighbourhoods(places, NOISY_GROUP, count)
            self._climb(rows, groups, ROUNDS[0], left)
        else:
            groups = self._neighbourhoods(places, self.size, self.count)
            self._climb(rows, groups, ROUNDS[1], left)

    def _climb(
        self,
        rows: Rows,
        groups: list[np.ndarray],
        iterations: int,
        seconds: float,
        start: list[Tensor] | None = None,
    ) -> _End:
        end = time.perf_counter() + seconds
        if start is not None:
            self.prior.set(start)
        free = self.prior.free
        maximise(
            GroupEvidence(self.prior, rows, groups, free),
            free,
            solver="lbfgs",
            max_iter=iterations,
            after_step=lambda: time.perf_counter() > end,
        )
        evidence = float(GroupEvidence(self.prior, rows, groups, [])())
        return _End(evidence, self.prior.values())

    @torch.no_grad()
    def _is_noisy(self) -> bool:
        """Whether the noise is most of what is seen."""
        kernel, likelihood = self.prior
        if likelihood is None:
            return False
        return float(likelihood.noise.mean()) > float(kernel.outputscale.mean())

    def _neighbourhoods(self, places: Tensor, size: int, count: int) -> list[np.ndarray]:
        likelihood = self.prior.likelihood
        noise_is_learnt = likelihood is not None and likelihood.raw_noise.requires_grad
        y = self.candidates[0].y if noise_is_learnt else None  # the same for all candidates
        return neighbourhoods(places, self.rng, size=size, count=count, apart=self.apart, y=y)

    def _trial(self) -> tuple[np.ndarray, np.ndarray]:
        """Return random rows that predict, and others that they predict, of other groups if there are any."""
        first = self.candidates[0]
        n_outputs, rows = first.y.shape[1], self.rng.permutation(len(first))
        n, count = 2 * COMPARED // 3, COMPARED
        if self.limited:
            n = int(COMPARED / 4 / n_outputs ** (1 / 3))
            count = 3 * n
        n = min(n, 2 * len(rows) // 3)
        if self.groups is None:
            return rows[:n], rows[n:count]
        numbers = self.rng.permutation(np.unique(self.groups))
        other = np.isin(self.groups[rows], numbers[: -(-len(numbers) // 3)])
        return rows[~other][:n], rows[other][: count - n]

    def _compared(self, rows: Rows, end: _End) -> _End:
        """Return the end with its error on rows held back."""
        return end if np.isfinite(end.error) else end._replace(error=self._error(rows, end))

    def _error(self, rows: Rows, end: _End) -> float:
        """Return the squared error of the exact GP of some rows on others, by weight."""
        self.prior.set(end.values)
        held = rows.take(self.trial[1])
        beforehand = held.known if self.prior.likelihood is None else 1 + held.known
        weights = held.weights[:, None] / beforehand  # the same for whatever has been learnt
        return float((self._trial_errors(rows) * weights / weights.mean(0)).mean())

    @torch.no_grad()
    def _trial_errors(self, rows: Rows) -> Tensor:
        """Return the squared error of the exact GP of some rows on each of others."""
        kernel = self.prior.kernel
        learnt, held = (rows.take(part) for part in self.trial)
        noise = self.prior.noise(learnt) / kernel.outputscale
        functions = PointBasis(learnt.x).at(kernel.base_kernel)
        a = block_solution(functions, noise, learnt.y)
        return (held.y - functions.evaluate(held.x) @ a).square()

    def _price(self) -> float:
        """Return about how many seconds each group adds to the whole work."""
        rows = self.candidates[0]
        size = min(GROUP, len(rows))
        pair = [self.rng.choice(len(rows), size, replace=False) for _ in range(2)]
        evidence = GroupEvidence(self.prior, rows, pair, self.prior.free)
        evidence()  # the first call is slower
        begin = time.perf_counter()
        evidence()
        per_group = (time.perf_counter() - begin) / 2
        searched = 0.5 * tried(rows.x.shape[1])  # without gradients
        calls = searched + 2 * EVALUATIONS * ROUNDS[0] + EVALUATIONS * ROUNDS[1]
        calls += 3 * EVALUATIONS * TRIED_ROUND * TRIED_GROUPS * self.smoothness_is_open
        return calls * per_group
