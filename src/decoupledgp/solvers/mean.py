"""The mean's coefficients under Gaussian noise: the GP of all rows, each row's function that of its cell.

The exact GP has a function per row with the coefficient a_n = (y_n - f(x_n))/λ, λ = σ²/ρ²: where every
row has its function, (K + λI)a = y, and sweeps solve it. With more rows than functions the rows of a
cell share the function at its centre, a_j = Σ_{n in j} (y_n - f(x_n))/λ, with f taken where the rows
are. The system of the cells alone, each with the mean of its rows' targets and its share of the noise,
is near that and gives the directions: its answers to the residuals of all rows. Along each, made
conjugate to the former ones, ½Σ_n (y_n - f(x_n))²/λ_n + ½aᵀK_αa is minimised, so that no step can diverge;
it takes one product with K_Xα, O(n M_α D).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from decoupledgp.bases import Functions
from decoupledgp.solvers.sweeps import DIRECTIONS, Sweeps, block_solution, product_by_rows

__all__ = ["MeanProblem", "MeanSolution", "correct_block", "solve_mean"]

PAIRS = 3
"""Pairs of a local and a global sweep at most, before the last plain one."""

REFINEMENTS = 4
"""Steps on all rows at most."""

ENOUGH, PATIENT = 0.06, 0.01
"""Stop when a step has lowered the watched error by a smaller share than this: the next would less. The
second is for a time that somebody has given: then steps are not counted."""

SETTLED = 0.003
"""Without watched rows, stop when a step changes the values at the rows by a smaller share."""

Follow = Callable[["MeanSolution"], bool]
"""Told of every step; a True stops the work early."""


@dataclass
class MeanProblem:
    """Cells with their mean targets and noise, and the rows in them where they hold several.

    Noise is relative to the kernel's scale ρ² of each output; all rows are standardised, in float64.
    """

    functions: Functions
    centres: Float[Tensor, "m d"]
    targets: Float[Tensor, "m p"]
    noise: Float[Tensor, "m p"]
    coordinates: Float[Tensor, "m d"]
    x: Float[Tensor, "n d"] | None = None
    y: Float[Tensor, "n p"] | None = None
    row_noise: Float[Tensor, "n p"] | None = None
    cell: Int[Tensor, " n"] | None = None

    def sweeps(
        self,
        rng: np.random.Generator,
        y: Float[Tensor, "m p"] | None = None,
        x: Float[Tensor, "k d"] | None = None,
    ) -> Sweeps:
        """Return the cells' system, with other targets and further rows to follow if given."""
        y = self.targets if y is None else y
        system = (self.functions, self.centres, self.noise, y)
        return Sweeps(*system, coordinates=self.coordinates, rng=rng, x=x)


class MeanSolution(NamedTuple):
    """Coefficients with y ≈ Ka, values at the centres, at rows learnt from and watched, and aᵀKa."""

    a: Float[Tensor, "m p"]
    at_centres: Float[Tensor, "m p"]
    at_rows: Float[Tensor, "n p"]
    watched: Float[Tensor, "k p"]
    norm: Float[Tensor, " p"]


def solve_mean(
    problem: MeanProblem,
    *,
    rng: np.random.Generator,
    watch: tuple[Float[Tensor, "k d"], Float[Tensor, "k p"]] | None = None,
    start: Float[Tensor, "m p"] | None = None,
    seconds: float = np.inf,
    follow: Follow = lambda solution: False,
) -> MeanSolution:
    """Solve until the watched rows' error no longer falls, or the steps or seconds are used up.

    `start` are coefficients to go on from. With watched rows and limited `seconds`, steps are not counted.
    """
    rows = None if watch is None else watch[0]
    solver = (
        _BySweeps(problem, rng, rows, start)
        if problem.x is None
        else _ByRefinement(problem, rng, rows, start)
    )
    begin = last = time.perf_counter()
    error, values = np.inf, None
    limited = bool(np.isfinite(seconds)) and watch is not None
    enough = PATIENT if limited else ENOUGH
    for _ in itertools.count() if limited and solver.most_steps else range(solver.most_steps):
        solver.step()
        took, last = time.perf_counter() - last, time.perf_counter()
        solution = solver.solution()
        if follow(solution):
            break
        former, error = error, _error(solution, watch)
        settled = not error < (1 - enough) * former  # nor when both are zero, or no numbers
        if watch is None:
            settled, values = _is_settled(solution.at_rows, values), solution.at_rows.clone()
        if settled or last - begin + (1 + solver.last_steps) * took > seconds:
            break
    solver.finish()
    return solver.solution()


@torch.no_grad()
def correct_block(problem: MeanProblem, a: Float[Tensor, "m p"], index: Int[Tensor, " b"]) -> None:
    """Solve for some coefficients, in place, with all others as they are. Time O(b M_α D + b³)."""
    functions = problem.functions.double()
    values = product_by_rows(functions, problem.centres[index], a)
    noise = problem.noise[index]
    left = problem.targets[index] - values - noise * a[index]
    a[index] += block_solution(functions.take(index), noise, left)


def _error(solution: MeanSolution, watch: tuple[Tensor, Tensor] | None) -> float:
    """Root mean squared error where it is watched, relative to each output's spread."""
    if watch is None:
        return 0.0
    difference = (solution.watched - watch[1]).square().mean(0)
    return float((difference / watch[1].var(0, correction=0).clamp_min(1e-12)).mean().sqrt())


def _is_settled(values: Tensor, former: Tensor | None) -> bool:
    """Whether a step has changed the values at the rows by little."""
    if former is None:
        return False
    change, size = (values - former).square().mean().sqrt(), values.square().mean().sqrt()
    return bool(change <= SETTLED * size)


class _BySweeps:
    """Every function has its row: a local and a global sweep per step, a plain one at the end."""

    last_steps = 1
    """How many steps `finish` takes as long as."""

    def __init__(
        self,
        problem: MeanProblem,
        rng: np.random.Generator,
        watched: Tensor | None,
        start: Tensor | None,
    ):
        self.sweeps = problem.sweeps(rng, x=watched)
        if start is not None:
            self.sweeps.start_from(start)
        self.most_steps = 0 if self.sweeps.is_one_block else PAIRS

    def step(self) -> None:
        self.sweeps.run("LG")

    def finish(self) -> None:
        self.sweeps.run("Lg" if self.most_steps else "g")

    def solution(self) -> MeanSolution:
        a, n = self.sweeps.a, len(self.sweeps.y)
        at_rows, watched = self.sweeps.values[:n], self.sweeps.values[n:]
        return MeanSolution(a, at_rows, at_rows, watched, (a * at_rows).sum(0))


class _Direction(NamedTuple):
    """A change of a with its values at the centres, and at the rows learnt from and watched."""

    a: Tensor
    at_centres: Tensor
    at_rows: Tensor


class _ByRefinement:
    """Cells of several rows: steps along the cells' answers to the residuals of all rows."""

    most_steps, last_steps = REFINEMENTS, 0

    def __init__(
        self,
        problem: MeanProblem,
        rng: np.random.Generator,
        watched: Tensor | None,
        start: Tensor | None,
    ):
        assert problem.x is not None
        assert problem.y is not None
        assert problem.row_noise is not None
        assert problem.cell is not None
        self.problem, self.rng, self.y, self.cell = problem, rng, problem.y, problem.cell
        self.precision = 1 / problem.row_noise
        self.rows = problem.x if watched is None else torch.cat([problem.x, watched])
        if start is None:
            zeros = torch.zeros_like(problem.targets)
            self.now = _Direction(zeros, zeros, self.y.new_zeros(len(self.rows), self.y.shape[1]))
        else:
            functions = problem.functions.double()
            values = (product_by_rows(functions, x, start) for x in (problem.centres, self.rows))
            self.now = _Direction(start.clone(), *values)
        self.directions: list[_Direction] = []

    @torch.no_grad()
    def step(self) -> None:
        residual = self.y - self.now.at_rows[: len(self.y)]
        direction = self._answer(residual)
        for former in self.directions:
            share = self._inner(former, direction) / self._inner(former, former)
            direction = _combine(direction, -share, former)
        self.directions = [*self.directions, direction][-DIRECTIONS:]
        slope = (self.precision * residual * direction.at_rows[: len(self.y)]).sum(0)
        slope = slope - (self.now.a * direction.at_centres).sum(0)
        self.now = _combine(self.now, slope / self._inner(direction, direction), direction)

    def finish(self) -> None:
        """Nothing more to do: the last step was the best one for the error on these rows."""

    def solution(self) -> MeanSolution:
        now, n = self.now, len(self.y)
        norm = (now.a * now.at_centres).sum(0)
        return MeanSolution(now.a, now.at_centres, now.at_rows[:n], now.at_rows[n:], norm)

    def _answer(self, residual: Tensor) -> _Direction:
        """Return the cells' solution for the residuals of all rows."""
        problem = self.problem
        left = torch.zeros_like(self.now.a).index_add_(0, self.cell, self.precision * residual)
        left = problem.noise * (left - self.now.a)
        sweeps = problem.sweeps(self.rng, left)
        sweeps.run("g" if sweeps.is_one_block else "LGg")
        at_rows = product_by_rows(sweeps.product, self.rows, sweeps.a)
        return _Direction(sweeps.a, sweeps.values, at_rows)

    def _inner(self, one: _Direction, other: _Direction) -> Float[Tensor, " p"]:
        n = len(self.y)
        data = (self.precision * one.at_rows[:n] * other.at_rows[:n]).sum(0)
        tiny = torch.finfo(data.dtype).tiny
        return data + (one.a * other.at_centres).sum(0) + tiny


def _combine(one: _Direction, share: Tensor, other: _Direction) -> _Direction:
    return _Direction(*(a + share * b for a, b in zip(one, other, strict=True)))
