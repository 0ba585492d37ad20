"""The paper's way to choose γ_0: by the bound after the first iterations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.paper.evaluate import held_out_bound
from decoupledgp.learners.gradient import BoundNotFiniteError

__all__ = ["BROKE_DOWN", "best_rate", "choose_rate"]

ROWS = 4096
"""Training rows that the bound is looked at with."""

BROKE_DOWN = (torch.linalg.LinAlgError, BoundNotFiniteError)
"""What a model raises whose steps were too long: no Cholesky factor, or a bound that is not finite."""


def choose_rate(
    make: Callable[[float], Any],
    X: np.ndarray,
    y: np.ndarray,
    rates: Sequence[float],
    seed: int,
) -> tuple[float, dict[str, float | None]]:
    """Return γ_0 and the bound that each γ_0 reached; `make` returns a model of a few iterations.

    The bound is on training rows: test rows play no part in the choice. A run that breaks down
    counts as none. With one rate nothing is run and no bound returned.
    """
    if len(rates) == 1:
        return rates[0], {}
    rows = np.random.default_rng([seed, 1]).permutation(len(X))[:ROWS]
    bounds: dict[float, float] = {}
    for rate in rates:
        try:
            model = make(rate).fit(X, y)
            bounds[rate] = float(held_out_bound(model, X[rows], y[rows], len(X))[0])
        except BROKE_DOWN:
            bounds[rate] = -math.inf
    reached = {str(r): bound if math.isfinite(bound) else None for r, bound in bounds.items()}
    return best_rate(bounds), reached


def best_rate(bounds: dict[float, float]) -> float:
    """Return the rate with the highest bound that is a number; of equals, the smallest rate."""
    finite = {rate: bound for rate, bound in bounds.items() if math.isfinite(bound)}
    if not finite:
        raise ValueError(f"no step size of {sorted(bounds)} gives a finite bound")
    return max(sorted(finite), key=lambda rate: finite[rate])
