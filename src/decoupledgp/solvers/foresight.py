"""How well a prior foretells targets that it was not told of, which decides between kernels.

Evidence sees all targets of a neighbourhood at once and is as glad of a kernel that explains noise as of
one that explains the function; and the log density of rows left out hangs on a few rows where the noise is
not as assumed. The squared error on rows left out is what a kernel is chosen for: how far it is off is
calibrated afterwards anyway.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from decoupledgp.bases import PointBasis
from decoupledgp.ops import safe_cholesky
from decoupledgp.ops.threads import run_all
from decoupledgp.solvers.neighbourhoods import Prior
from decoupledgp.solvers.rows import Rows

__all__ = ["is_ahead", "left_out_errors"]

MIDDLE = 0.25
"""Share of a group, nearest to its centre, whose rows are left out in turn: others lack neighbours."""


@torch.no_grad()
def left_out_errors(
    prior: Prior, rows: Rows, groups: list[Int[np.ndarray, " k"]]
) -> Float[np.ndarray, "g p"]:
    """Return the squared error on a row's targets given the others of its group, a mean per group.

    Groups have the rows nearest to their centre first. A group of all rows has an entry for each.
    """
    jobs = [partial(_left_out, prior, rows.take(group)) for group in groups]
    results = run_all(jobs, rows.x.device)
    if len(groups[0]) == len(rows):
        return results[0].numpy()
    middle = max(int(MIDDLE * len(groups[0])), 1)
    return np.array([errors[:middle].nanmean(0).numpy() for errors in results])


def is_ahead(one: Float[np.ndarray, "n p"], other: Float[np.ndarray, "n p"], *, by: float) -> bool:
    """Whether errors on the same rows are smaller, by such a share and by more than a standard error.

    Shares are taken by output, and of these the mean: outputs with small errors count as much as others.
    """
    known = ~np.isnan(other).any(1)  # twins
    one, other = one[known], other[known]
    if not len(one) or not np.isfinite(one).all():
        return False
    if not np.isfinite(other).all():
        return True
    gained = ((other - one) / np.maximum(other.mean(0), np.finfo(float).tiny)).mean(1)
    return bool(gained.mean() > max(by, gained.std() / max(len(gained) - 1, 1) ** 0.5))


def _left_out(prior: Prior, rows: Rows) -> Float[Tensor, "k p"]:
    """Return the squared error on every row's targets given all others', NaN for rows with a twin.

    With C = ρ²K + Σ the residual is [C⁻¹y]_i / [C⁻¹]_ii (Rasmussen & Williams 2006, equation 5.12).
    """
    K, noise = PointBasis(rows.x).at(prior.kernel.base_kernel).gram(), prior.noise(rows)
    errors = torch.empty_like(rows.y)
    for p, rho2 in enumerate(prior.kernel.outputscale):
        C = rho2 * K
        C.diagonal().add_(noise[:, p])
        factor = safe_cholesky(C)
        residual = torch.cholesky_solve(rows.y[:, [p]], factor)[:, 0]
        errors[:, p] = (residual / torch.cholesky_inverse(factor).diagonal()).square()
    _, which, counts = torch.unique(rows.x, dim=0, return_inverse=True, return_counts=True)
    errors[counts[which] > 1] = torch.nan  # foretold by their twins, whatever the kernel
    return errors
