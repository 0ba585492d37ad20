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
from decoupledgp.ops.threads import lanes, run_all

__all__ = ["exp_dense", "exp_matmul"]

BLOCK_ELEMENTS = 1 << 18
"""Numbers in one block: 1 MiB in float32, small enough for a core's cache, large enough for BLAS."""

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
    """Products are written with the short side first: BLAS is several times slower the other way."""

    @staticmethod
    def forward(ctx: Any, F: Tensor, G: Tensor, b: Tensor, A: Tensor) -> Tensor:
        ctx.save_for_backward(F, G, b, A)

        def product(lane: list[slice]) -> Tensor:
            out = F.new_zeros(A.shape[1], F.shape[0])
            for part, E in walk(F, G, b, lane):
                out.addmm_(A[part].T, exp_in_place(E).T)
            return out

        shares = over_lanes(product, F, G)
        out = reduce(torch.add, shares) if shares else F.new_zeros(A.shape[1], F.shape[0])
        return out.T.contiguous()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        F, G, b, A = ctx.saved_tensors
        (grad,) = grads
        need_F, need_G, need_b, need_A = ctx.needs_input_grad
        grad_G, grad_A = torch.empty_like(G), torch.empty_like(A)
        flat = A.shape[1] == 1 and not need_F
        rows = torch.cat([grad, grad * F], 1).T if flat else grad.T

        def gradients(lane: list[slice]) -> Any:
            """Fill this lane's slices of the functions' gradients; return its share of the rows'."""
            grad_F = torch.zeros_like(F) if need_F else None
            for part, E in walk(F, G, b, lane):
                K = exp_in_place(E)
                if flat:  # T = grad aᵀ ∘ K has rank one in front of K, and need not be formed
                    sums = torch.mm(rows, K).T
                    grad_A[part] = sums[:, :1]
                    torch.mul(sums[:, 1:], A[part], out=grad_G[part])
                    continue
                grad_A[part] = torch.mm(rows, K).T
                if grad_F is not None or need_G:
                    T = K.mul_(torch.mm(grad, A[part].T))
                    grad_G[part] = torch.mm(F.T, T).T
                    if grad_F is not None:
                        grad_F.addmm_(T, G[part])
            return grad_F

        shares = over_lanes(gradients, F, G)
        grad_F = None
        if need_F:
            grad_F = reduce(torch.add, shares) if shares else torch.zeros_like(F)
        grad_b = (A * grad_A).sum(1)  # = Σ_n T_nm
        return (
            grad_F,
            grad_G if need_G else None,
            grad_b if need_b else None,
            grad_A if need_A else None,
        )


def walk(F: Tensor, G: Tensor, b: Tensor, parts: Sequence[slice]) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of functions with the exponents F Gᵀ + 1 bᵀ of each, all in the same memory."""
    memory = F.new_empty(0, 0)
    for part in parts:
        G_part = G[part]
        if memory.shape != (len(F), len(G_part)):
            memory = F.new_empty(len(F), len(G_part))
        yield part, torch.addmm(b[part], F, G_part.T, out=memory)


def over_lanes(job: Callable[[list[slice]], Result], F: Tensor, G: Tensor) -> list[Result]:
    """Do the job for each lane of blocks, in parallel on a CPU."""
    parts = list(blocks(len(F), len(G)))
    return run_all([partial(job, lane) for lane in lanes(parts)], F.device)
