"""The optimal covariance on a given basis β under Gaussian noise, in closed form (Titsias 2009).

B = τ K_β⁻¹ (Σ_n w_n K_βn K_nβ) K_β⁻¹ with τ = ρ²/σ² and rows that count w_n times. Rows are walked
through in blocks: time O(n M_β²), memory O(M_β²), in float64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from decoupledgp.bases import Functions
from decoupledgp.collapsed import precision_root
from decoupledgp.ops import safe_cholesky

__all__ = ["CovarianceSolution", "solve_covariance"]

ROWS_AT_ONCE = 4096


class CovarianceSolution(NamedTuple):
    """The factor L of B = LLᵀ per output, and what the covariance adds to the bound."""

    L: Float[Tensor, "p k k"]
    bound: Float[Tensor, " p"]


@torch.no_grad()
def solve_covariance(
    beta: Functions,
    x: Float[Tensor, "n d"],
    weights: Float[Tensor, " n"],
    tau: Float[Tensor, " p"],
    prior: Float[Tensor, " n"],
) -> CovarianceSolution:
    """Return the optimal factor; `prior` is g(x_n, x_n).

    With M = I + τG the expected log-likelihood loses ½τ(Σ_n w_n g_n - tr G) + ½tr(τGM⁻¹), and the KL
    is ½(log|M| - tr(τGM⁻¹)): one term cancels.
    """
    beta = beta.double()
    C = safe_cholesky(beta.gram())
    G = torch.zeros_like(C)
    for start in range(0, len(x), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        U = torch.linalg.solve_triangular(C, beta.evaluate(x[part].double()).T, upper=False)
        G += (U * weights[part]) @ U.T
    values, root = precision_root(C, G)
    missing = tau * ((weights * prior).sum() - values.sum())
    log_det = torch.log1p(tau[:, None] * values).sum(1)
    return CovarianceSolution(tau.sqrt()[:, None, None] * root, -0.5 * (missing + log_det))
