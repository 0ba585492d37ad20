"""Inner products of multiscale basis functions (generalized SE-ARD, equation in appendix C.1).

ψ_iᵀψ_j = Π_d (2 l_id l_jd / (l_id² + l_jd²))^½ exp(-(z_id - z_jd)² / (l_id² + l_jd²)).

Three operators: the Gram matrix, for small bases; its product with coefficients; and the sum
Σ_ij (a_i·a_j) ψ_iᵀψ_j of the mean's KL. The last two never hold more than one block of it. Gradients
are derived by hand; no (M, M, D) array exists. On a CPU with Numba they run as fused loops
(`fused.py`), anywhere else as blocked PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from decoupledgp.ops.backend import use_numba
from decoupledgp.ops.exponential import blocks

__all__ = ["multiscale_gram", "multiscale_matmul", "multiscale_quadratic"]

PairGradients = tuple[Tensor, Tensor, Tensor, Tensor]


def multiscale_gram(
    z_i: Float[Tensor, "m d"],
    l_i: Float[Tensor, "m d"],
    z_j: Float[Tensor, "n d"],
    l_j: Float[Tensor, "n d"],
) -> Float[Tensor, "m n"]:
    """Return all inner products of two sets of functions with locations z and length-scales l."""
    return _Gram.apply(z_i, l_i, z_j, l_j)


def multiscale_matmul(
    z_i: Float[Tensor, "m d"],
    l_i: Float[Tensor, "m d"],
    z_j: Float[Tensor, "n d"],
    l_j: Float[Tensor, "n d"],
    A: Float[Tensor, "n p"],
) -> Float[Tensor, "m p"]:
    """Return the Gram matrix times A, a block of right functions at a time."""
    out = z_i.new_zeros(z_i.shape[0], A.shape[1])
    for part in blocks(z_i.shape[0], z_j.shape[0]):
        out = out + checkpoint(
            _product, z_i, l_i, z_j[part], l_j[part], A[part], use_reentrant=False
        )
    return out


def multiscale_quadratic(
    z_i: Float[Tensor, "m d"],
    l_i: Float[Tensor, "m d"],
    A_i: Float[Tensor, "m p"],
    z_j: Float[Tensor, "n d"],
    l_j: Float[Tensor, "n d"],
    A_j: Float[Tensor, "n p"],
) -> Float[Tensor, ""]:
    """Return Σ_p A_i[:, p]ᵀ K A_j[:, p], with gradients in all six, in O(m n d) time and O(m + n) memory."""
    return _Quadratic.apply(z_i, l_i, A_i, z_j, l_j, A_j)


def _product(z_i: Tensor, l_i: Tensor, z_j: Tensor, l_j: Tensor, A: Tensor) -> Tensor:
    return multiscale_gram(z_i, l_i, z_j, l_j) @ A


class _Gram(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z_i: Tensor, l_i: Tensor, z_j: Tensor, l_j: Tensor) -> Tensor:
        run = _fused_gram if use_numba(z_i) else _pair_kernel
        K = run(z_i, l_i, z_j, l_j)
        ctx.save_for_backward(z_i, l_i, z_j, l_j, K)
        return K

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> PairGradients:
        z_i, l_i, z_j, l_j, K = ctx.saved_tensors
        run = _fused_gram_gradients if use_numba(z_i) else _pair_gradients
        return run(grads[0] * K, z_i, l_i, z_j, l_j)


class _Quadratic(torch.autograd.Function):
    """The gradients come out of the forward pass; the backward pass only scales them."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        gradients = any(ctx.needs_input_grad)
        run = _fused_quadratic if use_numba(inputs[0]) else _blocked_quadratic
        value, *partials = run(*inputs, gradients=gradients)
        if gradients:
            ctx.save_for_backward(*partials)
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        return tuple(partial * grads[0] for partial in ctx.saved_tensors)


def _pair_kernel(z_i: Tensor, l_i: Tensor, z_j: Tensor, l_j: Tensor) -> Tensor:
    """Dimension by dimension: the product of ratios ≤ 1 can underflow (to the right limit), not overflow."""
    exponent = z_i.new_zeros(z_i.shape[0], z_j.shape[0])
    ratio = torch.ones_like(exponent)
    for d in range(z_i.shape[1]):
        total = l_i[:, d, None].square() + l_j[:, d].square()
        exponent.addcdiv_((z_i[:, d, None] - z_j[:, d]).square_(), total, value=-1)
        ratio.mul_((2 * l_i[:, d, None] * l_j[:, d]).div_(total))
    return exponent.exp_().mul_(ratio.sqrt_())


def _pair_gradients(T: Tensor, z_i: Tensor, l_i: Tensor, z_j: Tensor, l_j: Tensor) -> PairGradients:
    """Gradients in z_i, l_i, z_j, l_j for T_ij = K_ij ∂/∂K_ij; with u = (z_i - z_j) / (l_i² + l_j²)."""
    dz_i, dl_i, dz_j, dl_j = (torch.empty_like(part) for part in (z_i, l_i, z_j, l_j))
    half_i, half_j = 0.5 * T.sum(1), 0.5 * T.sum(0)
    for d in range(z_i.shape[1]):
        total = l_i[:, d, None].square() + l_j[:, d].square()
        u = (z_i[:, d, None] - z_j[:, d]).div_(total)
        Tu = T * u
        h = 2 * Tu * u - T / total
        dz_i[:, d], dz_j[:, d] = -2 * Tu.sum(1), 2 * Tu.sum(0)
        dl_i[:, d] = half_i / l_i[:, d] + l_i[:, d] * h.sum(1)
        dl_j[:, d] = half_j / l_j[:, d] + l_j[:, d] * h.sum(0)
    return dz_i, dl_i, dz_j, dl_j


def _blocked_quadratic(
    z_i: Tensor, l_i: Tensor, A_i: Tensor, z_j: Tensor, l_j: Tensor, A_j: Tensor, *, gradients: bool
) -> list[Tensor]:
    """Device-neutral version: one block of left functions against all right ones at a time."""
    out = [torch.zeros_like(part) for part in (z_i, l_i, A_i, z_j, l_j, A_j)]
    value = z_i.new_zeros(())
    for part in blocks(z_j.shape[0], z_i.shape[0]):
        K = _pair_kernel(z_i[part], l_i[part], z_j, l_j)
        KA = K @ A_j
        value = value + (A_i[part] * KA).sum()
        if not gradients:
            continue
        T = (A_i[part] @ A_j.T).mul_(K)
        dz_i, dl_i, dz_j, dl_j = _pair_gradients(T, z_i[part], l_i[part], z_j, l_j)
        out[0][part], out[1][part], out[2][part] = dz_i, dl_i, KA
        out[3] += dz_j
        out[4] += dl_j
        out[5] += K.T @ A_i[part]
    return [value, *out]


def _fused_gram(*inputs: Tensor) -> Tensor:
    from decoupledgp.ops import fused

    return torch.from_numpy(fused.gram(*_arrays(inputs)))


def _fused_gram_gradients(*inputs: Tensor) -> PairGradients:
    from decoupledgp.ops import fused

    dz_i, dl_i, dz_j, dl_j = map(torch.from_numpy, fused.gram_gradients(*_arrays(inputs)))
    return dz_i, dl_i, dz_j, dl_j


def _arrays(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    return [tensor.detach().contiguous().numpy() for tensor in tensors]


def _fused_quadratic(*inputs: Tensor, gradients: bool) -> list[Tensor]:
    from decoupledgp.ops import fused

    value, *partials = fused.quadratic(*_arrays(inputs), gradients=gradients)
    return [inputs[0].new_tensor(value), *(torch.from_numpy(part) for part in partials)]
