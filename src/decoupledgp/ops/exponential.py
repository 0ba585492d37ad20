"""exp(F Gᵀ + 1 bᵀ) A without ever keeping the exponential: the operator behind K_Xα a.

Every squared-exponential cross matrix between rows and basis functions is the exponential of a
bilinear form, so one operator serves plain inducing points and the multiscale basis alike: the
caller writes its rows as F (n, q) and its functions as G (m, q) with an offset b (m,).
Forward and backward walk over blocks of functions; the backward pass computes its block again
instead of keeping it. Memory beyond inputs and outputs: n × block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from decoupledgp.ops.backend import exp_in_place
from decoupledgp.ops.threads import run_all

__all__ = ["exp_dense", "exp_matmul"]

BLOCK_ELEMENTS = 1 << 18
"""Numbers in one block: 1 MiB in float32, small enough for a core's cache, large enough for BLAS."""

LANES = 8
"""Sequences of blocks that may run side by side."""

Result = TypeVar("Result")


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

        def product(lane: list[slice]) -> Tensor:
            out = F.new_zeros(F.shape[0], A.shape[1])
            for part, K in _walk(F, G, b, lane):
                out.addmm_(K, A[part])
            return out

        shares = _over_lanes(product, F, G)
        return reduce(torch.add, shares) if shares else F.new_zeros(F.shape[0], A.shape[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        F, G, b, A = ctx.saved_tensors
        (grad,) = grads
        need_F, need_G, need_b, need_A = ctx.needs_input_grad
        grad_G = torch.empty_like(G) if need_G else None
        grad_b = torch.empty_like(b) if need_b else None
        grad_A = torch.empty_like(A) if need_A else None

        def gradients(lane: list[slice]) -> Any:
            """Fill this lane's slices of the functions' gradients; return its share of the rows'."""
            grad_F = torch.zeros_like(F) if need_F else None
            for part, K in _walk(F, G, b, lane):
                if grad_A is not None:
                    torch.mm(K.T, grad, out=grad_A[part])
                if not (need_F or need_G or need_b):
                    continue
                T = K.mul_(torch.mm(grad, A[part].T))
                if grad_F is not None:
                    grad_F.addmm_(T, G[part])
                if grad_G is not None:
                    torch.mm(T.T, F, out=grad_G[part])
                if grad_b is not None:
                    torch.sum(T, 0, out=grad_b[part])
            return grad_F

        shares = _over_lanes(gradients, F, G)
        grad_F = None
        if need_F:
            grad_F = reduce(torch.add, shares) if shares else torch.zeros_like(F)
        return grad_F, grad_G, grad_b, grad_A


def _walk(
    F: Tensor, G: Tensor, b: Tensor, parts: Sequence[slice]
) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of functions with exp(F Gᵀ + 1 bᵀ) of each, all in the same memory."""
    memory = F.new_empty(0, 0)
    for part in parts:
        G_part = G[part]
        if memory.shape != (len(F), len(G_part)):
            memory = F.new_empty(len(F), len(G_part))
        torch.addmm(b[part], F, G_part.T, out=memory)
        yield part, exp_in_place(memory)


def _over_lanes(job: Callable[[list[slice]], Result], F: Tensor, G: Tensor) -> list[Result]:
    """Do the job for each lane of blocks, in parallel on a CPU.

    The lanes do not depend on the number of threads, so neither do sums over them.
    """
    parts = list(blocks(len(F), len(G)))
    lanes = [parts[k::LANES] for k in range(LANES) if k < len(parts)]
    return run_all([partial(job, lane) for lane in lanes], F.device)

