"""How well a prior foretells targets that it was not told of, which decides between kernels.

Evidence sees all targets of a neighbourhood at once and is as glad of a kernel that explains noise as of
one that explains the function. A row left out of its surroundings is predicted as rows will be that come
later, from the rows that are nearest.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from decoupledgp.bases import PointBasis
from decoupledgp.kernels import is_radial, prior_diagonal
from decoupledgp.ops import safe_cholesky
from decoupledgp.ops.threads import run_all
from decoupledgp.solvers.neighbourhoods import Prior
from decoupledgp.solvers.rows import Rows

__all__ = ["held_back_densities", "is_ahead", "left_out_densities"]

MIDDLE = 0.25
"""Share of a group, nearest to its centre, whose rows are left out in turn: others lack neighbours."""


@torch.no_grad()
def left_out_densities(
    prior: Prior, rows: Rows, groups: list[Int[np.ndarray, " k"]]
) -> Float[np.ndarray, " g"]:
    """Return the log density of a row's targets given the others of its group, a mean per group.

    Groups have the rows nearest to their centre first. One group is all rows: it has an entry for each.
    """
    jobs = [partial(_left_out, prior, rows.take(group)) for group in groups]
    results = run_all(jobs, rows.x.device, in_turn=not is_radial(prior.kernel.base_kernel))
    if len(results) == 1:
        return results[0].numpy()
    middle = max(int(MIDDLE * len(groups[0])), 1)
    return np.array([float(densities[:middle].mean()) for densities in results])


@torch.no_grad()
def held_back_densities(prior: Prior, learnt: Rows, held: Rows) -> Float[np.ndarray, " n"]:
    """Return the log density of each row held back given all that were learnt. Time O(n³ P)."""
    base, rho2 = prior.kernel.base_kernel, prior.kernel.outputscale
    functions = PointBasis(learnt.x).at(base)
    K, across = functions.gram(), functions.evaluate(held.x)
    own, noise, held_noise = prior_diagonal(base, held.x), prior.noise(learnt), prior.noise(held)
    total = torch.zeros_like(own)
    for p in range(learnt.y.shape[1]):
        factor = _factor(K, rho2[p], noise[:, p])
        half = torch.linalg.solve_triangular(factor, rho2[p] * across.T, upper=False)
        seen = torch.linalg.solve_triangular(factor, learnt.y[:, [p]], upper=False)
        variance = (rho2[p] * own - half.square().sum(0)).clamp_min(0) + held_noise[:, p]
        total += _log_normal(held.y[:, p] - (half.T @ seen)[:, 0], variance)
    return (total / learnt.y.shape[1]).numpy()


def is_ahead(one: Float[np.ndarray, " n"], other: Float[np.ndarray, " n"], *, by: float) -> bool:
    """Whether densities of the same rows are larger on average, by so much and by a standard error."""
    difference = one - other
    if not np.isfinite(difference).all():
        return bool(np.isfinite(one).all())
    error = difference.std() / max(len(difference) - 1, 1) ** 0.5
    return bool(difference.mean() > max(by, error))


def _left_out(prior: Prior, rows: Rows) -> Float[Tensor, " k"]:
    """Return the log density of every row's targets given all others', a mean over outputs.

    With C = ρ²K + Σ the residual is [C⁻¹y]_i / [C⁻¹]_ii and its variance 1/[C⁻¹]_ii (Rasmussen & Williams
    2006, equations 5.10 to 5.12).
    """
    K, noise = PointBasis(rows.x).at(prior.kernel.base_kernel).gram(), prior.noise(rows)
    total = torch.zeros_like(rows.y[:, 0])
    for p, rho2 in enumerate(prior.kernel.outputscale):
        factor = _factor(K, rho2, noise[:, p])
        variance = 1 / torch.cholesky_inverse(factor).diagonal()
        residual = variance * torch.cholesky_solve(rows.y[:, [p]], factor)[:, 0]
        total += _log_normal(residual, variance)
    return total / rows.y.shape[1]


def _factor(K: Tensor, rho2: Tensor, noise: Tensor) -> Tensor:
    C = rho2 * K
    C.diagonal().add_(noise)
    return safe_cholesky(C)


def _log_normal(residual: Tensor, variance: Tensor) -> Tensor:
    return -0.5 * (torch.log(2 * math.pi * variance) + residual.square() / variance)
