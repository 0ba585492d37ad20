"""Matérn kernels of order 1/2, 3/2 and 5/2 as functions of the exponent of the squared-exponential one.

With e = -r²/2 = F Gᵀ + 1 bᵀ (`exponential.py`) and t = (-4νe)^½ = (2ν)^½ r, the values and their slopes
in e are

    ν = 1/2:  exp(-t),                 exp(-t) / t
    ν = 3/2:  (1 + t) exp(-t),         3 exp(-t)
    ν = 5/2:  (1 + t + t²/3) exp(-t),  5/3 (1 + t) exp(-t).

Rounding in e where two places meet does no harm to the last two. Of order 1/2 it takes the root: an error
of 10⁻⁶ in e is one of 10⁻³ in the kernel. Its slope is infinite there, and taken to be zero.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from decoupledgp.ops.backend import use_numba
from decoupledgp.ops.exponential import over_lanes, walk

__all__ = ["MATERN_ORDERS", "matern", "matern_gram", "matern_matmul"]

MATERN_ORDERS = (0.5, 1.5, 2.5)
"""Values of ν for which there is a fast road."""

BY_DIFFERENCES = "donot_use_mm_for_euclid_dist"
"""PyTorch's word for distances that are not rounded as products are."""


def matern(exponents: Float[Tensor, "n m"], nu: float) -> Float[Tensor, "n m"]:
    """Return the kernel's values for exponents -r²/2, with their gradients."""
    return _Values.apply(exponents, nu)


def matern_matmul(
    F: Float[Tensor, "n q"],
    G: Float[Tensor, "m q"],
    b: Float[Tensor, " m"],
    A: Float[Tensor, "m p"],
    nu: float,
) -> Float[Tensor, "n p"]:
    """Return the kernel of exponents F Gᵀ + 1 bᵀ times A in O(n · block) memory, with all gradients."""
    return _Matmul.apply(F, G, b, A, nu)


def matern_gram(
    z_i: Float[Tensor, "m d"], z_j: Float[Tensor, "n d"], nu: float
) -> Float[Tensor, "m n"]:
    """Return the kernel's values between places in units of length-scales, for small sets of them.

    By differences: symmetric to the last bit and one where places meet, with finite gradients there.
    """
    r = torch.cdist(z_i, z_j, compute_mode=BY_DIFFERENCES)
    return torch.exp(-r) if nu == 0.5 else matern(-0.5 * r.square(), nu)


class _Values(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exponents: Tensor, nu: float) -> Tensor:
        K = exponents.clone(memory_format=torch.contiguous_format)
        if not ctx.needs_input_grad[0]:
            return _fill(K, None, nu)
        slopes = torch.empty_like(K)
        _fill(K, slopes, nu)
        ctx.save_for_backward(slopes)
        return K

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (slopes,) = ctx.saved_tensors
        return grads[0] * slopes, None


class _Matmul(torch.autograd.Function):
    """Forward and backward walk over blocks of functions; the backward pass computes them again."""

    @staticmethod
    def forward(ctx: Any, F: Tensor, G: Tensor, b: Tensor, A: Tensor, nu: float) -> Tensor:
        ctx.save_for_backward(F, G, b, A)
        ctx.nu = nu

        def product(lane: list[slice]) -> Tensor:
            out = F.new_zeros(A.shape[1], F.shape[0])
            for part, E in walk(F, G, b, lane):
                out.addmm_(A[part].T, _fill(E, None, nu).T)
            return out

        shares = over_lanes(product, F, G)
        out = reduce(torch.add, shares) if shares else F.new_zeros(A.shape[1], F.shape[0])
        return out.T.contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        F, G, b, A = ctx.saved_tensors
        (grad,) = grads
        need_F, need_G, need_b, need_A, _ = ctx.needs_input_grad
        places = need_F or need_G or need_b
        grad_G, grad_b, grad_A = torch.empty_like(G), torch.empty_like(b), torch.empty_like(A)

        def gradients(lane: list[slice]) -> Tensor:
            """Fill this lane's slices of the functions' gradients; return its share of the rows'."""
            grad_F = torch.zeros_like(F)
            slopes = F.new_empty(0)
            for part, E in walk(F, G, b, lane):
                if places and slopes.shape != E.shape:
                    slopes = torch.empty_like(E)
                K = _fill(E, slopes if places else None, ctx.nu)
                grad_A[part] = torch.mm(grad.T, K).T
                if places:
                    T = slopes.mul_(torch.mm(grad, A[part].T))
                    grad_b[part] = T.sum(0)
                    grad_G[part] = torch.mm(F.T, T).T
                if need_F:
                    grad_F.addmm_(T, G[part])
            return grad_F

        shares = over_lanes(gradients, F, G)
        grad_F = reduce(torch.add, shares) if shares else torch.zeros_like(F)
        return (
            grad_F if need_F else None,
            grad_G if need_G else None,
            grad_b if need_b else None,
            grad_A if need_A else None,
            None,
        )


def _fill(K: Tensor, slopes: Tensor | None, nu: float) -> Tensor:
    """Replace a contiguous block of exponents by the kernel's values; put the slopes in e beside them."""
    if use_numba(K):
        from decoupledgp.ops import fused

        beside = K.new_empty(0) if slopes is None else slopes
        fused.matern_in_place(K.view(-1).numpy(), beside.view(-1).numpy(), nu)
        return K
    t = K.mul_(-4 * nu).clamp_min_(0).sqrt_()
    decay = torch.exp(-t)
    if nu == 0.5:
        if slopes is not None:
            slopes.copy_(torch.where(t > 0, decay / t, 0))
        return t.copy_(decay)
    if nu == 1.5:
        if slopes is not None:
            torch.mul(decay, 3, out=slopes)
        return t.add_(1).mul_(decay)
    if slopes is not None:
        torch.add(t, 1, out=slopes).mul_(decay).mul_(5 / 3)
    return t.mul_(t / 3 + 1).add_(1).mul_(decay)
