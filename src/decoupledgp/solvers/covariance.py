"""The optimal covariance on a given basis β under Gaussian noise, in closed form (Titsias 2009).

B = K_β⁻¹ (Σ_n K_βn K_nβ / λ_n) K_β⁻¹, with λ_n the noise of row n over the kernel's scale ρ². Rows are
walked through in blocks: time O(n M_β²), memory O(M_β²), in float64; as much again for every output
whose noise is not in proportion to the first one's.
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
    """The factor L of B = LLᵀ per output, what the covariance adds to the bound, and its part of the KL."""

    L: Float[Tensor, "p k k"]
    bound: Float[Tensor, " p"]
    kl: Float[Tensor, " p"]


@torch.no_grad()
def solve_covariance(
    beta: Functions,
    x: Float[Tensor, "n d"],
    noise: Float[Tensor, "n p"],
    prior: Float[Tensor, " n"],
) -> CovarianceSolution:
    """Return the optimal factor; `noise` is relative to ρ², `prior` is g(x_n, x_n).

    With G = Σ_n u_n u_nᵀ / λ_n and M = I + G the expected log-likelihood loses
    ½(Σ_n g_n/λ_n - tr G) + ½tr(GM⁻¹), and the KL is ½(log|M| - tr(GM⁻¹)): one term cancels.
    """
    beta = beta.double()
    C = safe_cholesky(beta.gram())
    precision = 1 / noise
    first = precision[:, :1]
    share = precision[:1] / first[:1]
    same = bool(torch.allclose(first * share, precision, rtol=1e-12, atol=0))
    parts = []
    for p in range(1 if same else precision.shape[1]):
        values, root = precision_root(C, _gram(beta, C, x, precision[:, p]))
        parts.append((values, root))
    if same:
        values, root = parts[0]
        scales = share[0].tolist() if len(x) else [1.0] * precision.shape[1]
        parts = [(scale * values, scale**0.5 * root) for scale in scales]
    eigenvalues = torch.stack([values for values, _ in parts])
    missing = (precision * prior[:, None]).sum(0) - eigenvalues.sum(1)
    log_det = torch.log1p(eigenvalues).sum(1)
    kl = 0.5 * (log_det - (eigenvalues / (1 + eigenvalues)).sum(1))
    L = torch.stack([root for _, root in parts])
    return CovarianceSolution(L, -0.5 * (missing + log_det), kl)


def _gram(beta: Functions, C: Tensor, x: Tensor, precision: Tensor) -> Float[Tensor, "k k"]:
    """Return Σ_n u_n u_nᵀ / λ_n with u = C⁻¹K_βn."""
    G = torch.zeros_like(C)
    for start in range(0, len(x), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        U = torch.linalg.solve_triangular(C, beta.evaluate(x[part].double()).T, upper=False)
        G += (U * precision[part]) @ U.T
    return G
