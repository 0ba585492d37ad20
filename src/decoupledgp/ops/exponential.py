"""exp(F Gᵀ + 1 bᵀ) A without ever keeping the exponential: the operator behind K_Xα a.

Every squared-exponential cross matrix between rows and basis functions is the exponential of a
bilinear form, so one operator serves plain inducing points and the multiscale basis alike: the
caller writes its rows as F (n, q) and its functions as G (m, q) with an offset b (m,).
Forward and backward walk over blocks of functions; the backward pass computes its block again
instead of keeping it. Memory beyond inputs and outputs: n × block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["exp_dense", "exp_matmul"]

BLOCK_ELEMENTS = 1 << 19
"""Numbers in one block: 2 MiB in float32, small enough for a cache, large enough for BLAS."""


def exp_dense(
    F: Float[Tensor, "n q"], G: Float[Tensor, "m q"], b: Float[Tensor, " m"]
) -> Float[Tensor, "n m"]:
    """Return exp(F Gᵀ + 1 bᵀ) itself, for bases small enough to hold it."""
    return torch.addmm(b, F, G.T).exp()


def exp_matmul(
    F: Float[Tensor, "n q"],
    G: Float[Tensor, "m q"],
    b: Float[Tensor, " m"],
    A: Float[Tensor, "m p"],
) -> Float[Tensor, "n p"]:
    """Return exp(F Gᵀ + 1 bᵀ) A in O(n m q) time and O(n · block) memory, with all gradients."""
    return _ExpMatmul.apply(F, G, b, A)


def blocks(n: int, m: int) -> Iterator[slice]:
    """Cut m functions into slices so that n rows against one slice make one block."""
    size = max(1, BLOCK_ELEMENTS // max(n, 1))
    for start in range(0, m, size):
        yield slice(start, min(start + size, m))


class _ExpMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, F: Tensor, G: Tensor, b: Tensor, A: Tensor) -> Tensor:
        ctx.save_for_backward(F, G, b, A)
        out = F.new_zeros(F.shape[0], A.shape[1])
        for part in blocks(F.shape[0], G.shape[0]):
            out.addmm_(_block(F, G, b, part), A[part])
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        F, G, b, A = ctx.saved_tensors
        (grad,) = grads
        need_F, need_G, need_b, need_A = ctx.needs_input_grad
        grad_F = torch.zeros_like(F) if need_F else None
        grad_G = torch.empty_like(G) if need_G else None
        grad_b = torch.empty_like(b) if need_b else None
        grad_A = torch.empty_like(A) if need_A else None
        for part in blocks(F.shape[0], G.shape[0]):
            K = _block(F, G, b, part)
            if grad_A is not None:
                torch.mm(K.T, grad, out=grad_A[part])
            if not (need_F or need_G or need_b):
                continue
            T = torch.mm(grad, A[part].T).mul_(K)
            if grad_F is not None:
                grad_F.addmm_(T, G[part])
            if grad_G is not None:
                torch.mm(T.T, F, out=grad_G[part])
            if grad_b is not None:
                torch.sum(T, 0, out=grad_b[part])
        return grad_F, grad_G, grad_b, grad_A


def _block(F: Tensor, G: Tensor, b: Tensor, part: slice) -> Tensor:
    return torch.addmm(b[part], F, G[part].T).exp_()
