"""How the coefficients are parametrised (appendix A.1): a = P⁻¹a₀ and L = Q⁻ᵀL₀, P near K_α, QQᵀ near K_β.

First-order steps on a and L crawl where the Gram matrices are ill-conditioned; steps on a₀ and L₀ see
better conditioned ones. For the mean everything is linear in M_α; for the covariance, which is small,
the whole Gram matrix can be used.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from decoupledgp.bases import Functions
from decoupledgp.ops import safe_cholesky

__all__ = [
    "COV_PRECONDITIONERS",
    "MEAN_PRECONDITIONERS",
    "Diagonal",
    "Nystrom",
    "cov_factor",
    "known",
    "lengthened",
    "mean_preconditioner",
]

MEAN_PRECONDITIONERS = ("none", "jacobi", "nystrom")
COV_PRECONDITIONERS = ("none", "jacobi", "full")

SMALLEST_DIAGONAL = 1e-12
"""Jacobi preconditioning divides by ψᵀψ; a function of no length has no coefficient to speak of."""

SMALLEST_REMAINDER = 0.01
"""Share of ψᵀψ that Nyström's P leaves to each function at least: a function in the span of the
covariance basis would otherwise have a coefficient that any step in a₀ throws far."""


class Diagonal:
    """P = diag(d)."""

    def __init__(self, d: Float[Tensor, " m"]):
        self.d = d[:, None]

    def solve(self, a0: Float[Tensor, "m p"]) -> Float[Tensor, "m p"]:
        """Return P⁻¹a₀."""
        return a0 / self.d

    def multiply(self, a: Float[Tensor, "m p"]) -> Float[Tensor, "m p"]:
        """Return Pa."""
        return a * self.d


class Nystrom:
    """P = K_αβK_β⁻¹K_βα + D, with what the first term lacks of K_α's diagonal in D.

    Time O(M_α M_β (D + M_β)) and memory O(M_α M_β), in float64. Without covariance functions it is
    Jacobi's.
    """

    def __init__(self, alpha: Functions, beta: Functions):
        alpha, beta = alpha.double(), beta.double()
        C = safe_cholesky(beta.gram())
        self.F = torch.linalg.solve_triangular(C, beta.gram(alpha), upper=False).T
        whole = alpha.diagonal().clamp_min(SMALLEST_DIAGONAL)
        remainder = whole - self.F.square().sum(1)
        self.d = torch.maximum(remainder, SMALLEST_REMAINDER * whole)[:, None]
        # Woodbury: I + FᵀD⁻¹F has no eigenvalue below 1.
        self.scaled = self.F / self.d
        inner = torch.eye(len(beta)).to(C) + self.F.T @ self.scaled
        self.inner = torch.linalg.cholesky(inner)

    def solve(self, a0: Float[Tensor, "m p"]) -> Float[Tensor, "m p"]:
        """Return P⁻¹a₀, in float64."""
        a0 = a0.double()
        return a0 / self.d - self.scaled @ torch.cholesky_solve(self.scaled.T @ a0, self.inner)

    def multiply(self, a: Float[Tensor, "m p"]) -> Float[Tensor, "m p"]:
        """Return Pa, in float64."""
        a = a.double()
        return self.F @ (self.F.T @ a) + self.d * a


def known(kind: str, kinds: tuple[str, ...]) -> str:
    """Return the kind of preconditioner, or raise a ValueError if there is none of that name."""
    if kind not in kinds:
        raise ValueError(f"the preconditioner must be one of {', '.join(kinds)}, not {kind!r}")
    return kind


def lengthened(a: Float[Tensor, "m p"], n: int) -> Float[Tensor, "n p"]:
    """Return coefficients of n functions: zero for those that are new."""
    return torch.cat([a, a.new_zeros(n - len(a), a.shape[1])])


def mean_preconditioner(kind: str, alpha: Functions, beta: Functions) -> Diagonal | Nystrom:
    """Return P of the mean coefficients a = P⁻¹a₀."""
    if kind == "nystrom":
        return Nystrom(alpha, beta)
    d = alpha.diagonal()
    return Diagonal(d.clamp_min(SMALLEST_DIAGONAL) if kind == "jacobi" else torch.ones_like(d))


def cov_factor(kind: str, beta: Functions, L0: Float[Tensor, "p k k"]) -> Float[Tensor, "p k k"]:
    """Return L from L₀: as it is, diag(K_β)⁻¹L₀, or C⁻ᵀL₀ with CCᵀ = K_β, so that LᵀK_βL = L₀ᵀL₀."""
    if kind == "none":
        return L0
    if kind == "jacobi":
        return L0 / beta.diagonal().clamp_min(SMALLEST_DIAGONAL)[:, None]
    C = safe_cholesky(beta.double().gram())
    return torch.linalg.solve_triangular(C.T, L0.double(), upper=True)
