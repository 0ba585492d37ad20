"""What a run begins with: γ_0 and the first length-scales, by the bound after the first iterations.

The paper chooses γ_0 so. How it begins with length-scales can be read in two ways: "s_d is initialized as the
median of pairwise distances of the sampled observations", distances in input d, or between whole rows.
Each system gets the reading that is better for its own objective, chosen on training rows along with γ_0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from gpytorch.kernels import RBFKernel

from benchmarks.paper.evaluate import held_out_bound
from decoupledgp.kernels import median_distance, median_distances, se_ard
from decoupledgp.learners.gradient import BoundNotFiniteError

__all__ = ["BROKE_DOWN", "DISTANCES", "Beginning", "best", "choose", "first_kernel"]

ROWS = 4096
"""Training rows that the bound is looked at with."""

BROKE_DOWN = (torch.linalg.LinAlgError, BoundNotFiniteError)
"""What a model raises whose steps were too long: no Cholesky factor, or a bound that is not finite."""

DISTANCES: dict[str, Callable[[torch.Tensor], Any]] = {
    "inputs": median_distances,
    "rows": median_distance,
}
"""The readings: median distances in each input, or the one between rows for all."""


class Beginning(NamedTuple):
    """Which distances the first length-scales are, and γ_0."""

    distances: str
    rate: float

    def __str__(self) -> str:
        return f"{self.rate:g}, {self.distances}"


def first_kernel(distances: str, X: np.ndarray) -> RBFKernel:
    """Return the SE-ARD kernel with the length-scales that these rows suggest, which are standardised."""
    kernel = se_ard(X.shape[1])
    kernel.lengthscale = DISTANCES[distances](torch.from_numpy(X))
    return kernel


def choose(
    make: Callable[[Beginning], Any],
    X: np.ndarray,
    y: np.ndarray,
    candidates: Sequence[Beginning],
    seed: int,
) -> tuple[Beginning, dict[str, float | None]]:
    """Return the best beginning and the bound of each; `make` returns a model of a few iterations.

    The bound is on training rows: test rows play no part in the choice. A run that breaks down
    counts as none. With one candidate nothing is run and no bound returned.
    """
    if len(candidates) == 1:
        return candidates[0], {}
    rows = np.random.default_rng([seed, 1]).permutation(len(X))[:ROWS]
    bounds: dict[Beginning, float] = {}
    for candidate in candidates:
        try:
            model = make(candidate).fit(X, y)
            bounds[candidate] = float(held_out_bound(model, X[rows], y[rows], len(X))[0])
        except BROKE_DOWN:
            bounds[candidate] = -math.inf
    reached = {str(c): bound if math.isfinite(bound) else None for c, bound in bounds.items()}
    return best(bounds), reached


def best(bounds: dict[Beginning, float]) -> Beginning:
    """Return the beginning with the highest bound that is a number; of equals, the smallest rate."""
    finite = {beginning: bound for beginning, bound in bounds.items() if math.isfinite(bound)}
    if not finite:
        raise ValueError(f"no beginning of {', '.join(map(str, bounds))} gives a finite bound")
    return max(sorted(finite, key=lambda one: one.rate), key=lambda one: finite[one])
