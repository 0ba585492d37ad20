"""Squared lengths of rows of K V_p for several factors V_p: the variance that a small basis explains.

The outputs of a model differ only in their V_p, so this is what one more output costs beyond its
column of coefficients. Each output is one job on one thread; K V_p is kept for the backward pass,
the arrays derived from it are not.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from decoupledgp.ops.threads import lanes, run_all

__all__ = ["row_norms"]


def row_norms(K: Float[Tensor, "n k"], V: Float[Tensor, "p k k"]) -> Float[Tensor, "n p"]:
    """Return ‖K_n V_p‖² for every row and output, in O(n p k²) time and O(n p k) memory."""
    return _RowNorms.apply(K, V)


class _RowNorms(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, K: Tensor, V: Tensor) -> Tensor:
        keep = any(ctx.needs_input_grad)

        def norms(V_p: Tensor) -> tuple[Tensor, Tensor | None]:
            W = K @ V_p
            return torch.linalg.vector_norm(W, dim=1).square_(), W if keep else None

        results = run_all([partial(norms, V_p) for V_p in V], K.device)
        if keep:
            ctx.save_for_backward(K, V, *(W for _, W in results if W is not None))
        return torch.stack([norm for norm, _ in results], 1) if results else K.new_zeros(len(K), 0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        K, V, *W = ctx.saved_tensors
        twice = 2 * grads[0]
        grad_V = torch.empty_like(V)

        def gradients(outputs: range) -> Tensor:
            grad_K = torch.zeros_like(K)
            for p in outputs:
                scaled = W[p] * twice[:, p, None]
                torch.mm(K.T, scaled, out=grad_V[p])
                grad_K.addmm_(scaled, V[p].T)
            return grad_K

        jobs = [partial(gradients, lane) for lane in lanes(range(len(V)))]
        shares = run_all(jobs, K.device)
        return reduce(torch.add, shares) if shares else torch.zeros_like(K), grad_V
