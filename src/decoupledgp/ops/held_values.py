"""Mean, explained variance and KL of values whose distribution is held while the prior moves.

u has the mean Cv and the covariance CSCᵀ, with CCᵀ = r²K the prior's. With U = rC⁻¹K_Zx those of f/ρ are

    mean U_nᵀv,  explained U_nᵀ(I - S)U_n,  KL ½(‖v‖² + tr S - M - log|S|).

As K, K_Zx and r move u does not, and v and S bend. Autograd would go through every factor of theirs. By hand
all that comes through K has the gradient -½C⁻ᵀQC⁻¹ with one symmetric matrix Q.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["Held", "RowGram", "held_values"]


class RowGram:
    """U diag(w_p) Uᵀ of whitened rows, kept for weights in proportion to the last ones.

    Under Gaussian noise the natural gradient and Adam's weigh all rows alike: one product is enough.
    """

    def __init__(self, U: Float[Tensor, "m n"]):
        self.U = U
        self._last: tuple[Tensor, Tensor] | None = None

    @torch.no_grad()
    def __call__(self, weights: Float[Tensor, "n p"]) -> Float[Tensor, "p m m"]:
        """Return the products, which nobody may write to. Time O(P M² n)."""
        if self._last is not None:
            last, products = self._last
            share = weights[:1] / last[:1]
            if torch.allclose(share * last, weights, rtol=1e-12, atol=0):
                return share[0][:, None, None] * products
        products = (self.U * weights.T[:, None]) @ self.U.T
        self._last = weights, products
        return products


class Held(NamedTuple):
    """The values in the coordinates of the prior's Cholesky factor C at the present K, r being 1."""

    C: Float[Tensor, "m m"]
    v: Float[Tensor, "m p"]
    S: Float[Tensor, "p m m"]
    log_det: Float[Tensor, " p"]


def held_values(
    K: Float[Tensor, "m m"],
    cross: Float[Tensor, "m n"],
    r: Float[Tensor, " p"],
    held: Held,
) -> tuple[Float[Tensor, "n p"], Float[Tensor, "n p"], Float[Tensor, ""], RowGram]:
    """Return means, explained variances, the KL summed over outputs, and U with its products.

    `held.C` is K's own factor (jitter aside) and `r` has the value 1: only their changes count. Time
    O(P M² (n + M)), memory O(P M (n + M)).
    """
    with torch.no_grad():
        gram = RowGram(torch.linalg.solve_triangular(held.C, cross, upper=False))
    return *_HeldValues.apply(K, cross, r, *held, gram), gram


class _HeldValues(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        K: Tensor,
        cross: Tensor,
        r: Tensor,
        C: Tensor,
        v: Tensor,
        S: Tensor,
        log_det: Tensor,
        gram: RowGram,
    ) -> tuple[Tensor, Tensor, Tensor]:
        U = gram.U
        Z = U - S @ U  # (p, m, n)
        explained = (U * Z).sum(1).T
        trace = S.diagonal(dim1=1, dim2=2).sum()
        kl = 0.5 * (v.square().sum() + trace - v.numel() - log_det.sum())
        ctx.save_for_backward(C, v, S, Z, explained)
        ctx.gram = gram
        return U.T @ v, explained, kl

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        C, v, S, Z, explained = ctx.saved_tensors
        U, (by_mean, by_explained, by_kl) = ctx.gram.U, grads
        by_U = v @ by_mean.T + 2 * torch.einsum("pmn,np->mn", Z, by_explained)
        by_v = U @ by_mean  # of the mean alone; the KL adds v
        Q = by_v @ v.T
        Q += Q.T.clone()
        Q += by_kl * (v @ v.T)
        weighted = ctx.gram(by_explained)
        SW = S @ weighted
        Q += (2 * (weighted - SW - SW.mT) + by_kl * S).sum(0)
        Q.diagonal().sub_(by_kl * len(S))
        by_K = -0.5 * _both_sides(C, Q)
        by_cross = torch.linalg.solve_triangular(C.T, by_U, upper=True)
        unexplained = U.square().sum(0)[:, None] - explained  # U_nᵀSU_n
        by_S = by_kl * (S.diagonal(dim1=1, dim2=2).sum(1) - len(C)) - 2 * (
            by_explained * unexplained
        ).sum(0)
        by_r = -((by_v + by_kl * v) * v).sum(0) - by_S
        return by_K, by_cross, by_r, None, None, None, None, None


def _both_sides(C: Float[Tensor, "m m"], Q: Float[Tensor, "m m"]) -> Float[Tensor, "m m"]:
    """Return C⁻ᵀQC⁻¹."""
    left = torch.linalg.solve_triangular(C.T, Q, upper=True)
    return torch.linalg.solve_triangular(C, left, upper=False, left=False)
