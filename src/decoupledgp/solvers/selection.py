"""Which rows become functions, where not all of them can.

All choices but the random one look at a random pool of a few times as many rows, and cost more;
`benchmarks/selection.py` compares them.
"""

from __future__ import annotations

import numpy as np
import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float, Int
from torch import Tensor

from decoupledgp.bases import Functions, PointBasis
from decoupledgp.kernels import prior_diagonal
from decoupledgp.ops import safe_cholesky

__all__ = ["CHOICES", "choose"]

CHOICES = ("random", "k-means++", "leverage", "greedy")

POOL = 4
"""Rows that are looked at for each function."""

MOST_WORK = 2e10
"""Products that a choice may take; a larger basis is chosen at random."""

ROWS_AT_ONCE = 8192

LANDMARKS = 512
"""Random rows that estimate leverage, at most; a quarter of the functions if that is less."""


@torch.no_grad()
def choose(
    kernel: Kernel,
    places: Float[Tensor, "n d"],
    x: Float[Tensor, "n d"],
    count: int,
    how: str,
    rng: np.random.Generator,
) -> Int[np.ndarray, " k"]:
    """Return the rows that become functions; `places` are the rows in units of the length-scales.

    Time O(count² D) for "k-means++" and "leverage", O(count³) for "greedy", each with a factor of four.
    """
    pool = rng.permutation(len(x))[: POOL * count]
    work = POOL * count**2 * (count / 2 if how == "greedy" else x.shape[1])
    if not count or count >= len(x) or how == "random" or work > MOST_WORK:
        return pool[:count]
    index = torch.from_numpy(pool)
    if how == "k-means++":
        return pool[_spread(places[index].numpy(), count, rng)]
    functions = PointBasis(x[index]).at(kernel)
    if how == "greedy":
        return pool[_greedy(functions, x[index], count)]
    return pool[_by_leverage(kernel, x[index], count, rng)]


def _spread(places: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Arthur & Vassilvitskii's seeding: each next row in proportion to its squared distance."""
    chosen = [int(rng.integers(len(places)))]
    nearest = np.square(places - places[chosen[0]]).sum(1)
    while len(chosen) < count:
        total = nearest.sum()
        if total <= 0:  # all that are left are repeats
            left = np.setdiff1d(np.arange(len(places)), chosen)
            return np.array([*chosen, *left[: count - len(chosen)]])
        new = int(np.searchsorted(np.cumsum(nearest), rng.random() * total))
        chosen.append(min(new, len(places) - 1))
        nearest = np.minimum(nearest, np.square(places - places[chosen[-1]]).sum(1))
        nearest[chosen[-1]] = 0
    return np.array(chosen)


def _greedy(functions: Functions, x: Float[Tensor, "n d"], count: int) -> np.ndarray:
    """Pivoted Cholesky: each next row is that of the largest variance given those before.

    Memory O(count n): of the Gram matrix only the chosen rows are ever computed.
    """
    left = functions.diagonal().clone()
    factor = left.new_zeros(count, len(x))
    chosen = []
    for j in range(count):
        row = int(left.argmax())
        chosen.append(row)
        own = functions.take(torch.tensor([row])).evaluate(x)[:, 0]
        column = own - factor[:j, row] @ factor[:j]
        factor[j] = column / left[row].clamp_min(1e-12).sqrt()
        left = (left - factor[j].square()).clamp_min(0)
        left[torch.tensor(chosen)] = -1
    return np.array(chosen)


def _by_leverage(kernel: Kernel, x: Tensor, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw rows in proportion to the variance that a few random rows leave of them."""
    few = rng.permutation(len(x))[: min(LANDMARKS, count // 4 + 1)]
    landmarks = PointBasis(x[torch.from_numpy(few)]).at(kernel)
    C = safe_cholesky(landmarks.gram())
    left = np.empty(len(x))
    for part in (slice(k, k + ROWS_AT_ONCE) for k in range(0, len(x), ROWS_AT_ONCE)):
        U = torch.linalg.solve_triangular(C, landmarks.evaluate(x[part]).T, upper=False)
        left[part] = (prior_diagonal(kernel, x[part]) - U.square().sum(0)).clamp_min(1e-6)
    return rng.choice(len(x), count, replace=False, p=left / left.sum())
