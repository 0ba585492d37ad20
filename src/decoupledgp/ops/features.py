"""Multiscale functions as features of an exponential of a product (see `exponential.py`).

φ_xᵀψ_m = Π_d (2 l s w)^½ exp(-(x - z)² w) with w = 1 / (l² + s²), so with rows F = [-x², 2x]:
G = [w, zw] and b = Σ_d ½ log(2 l s w) - z²w. Written by hand because autograd would keep ten arrays
of the basis' size where one is enough.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["multiscale_features"]


def multiscale_features(
    z: Float[Tensor, "m d"], l: Float[Tensor, "m d"], s: Float[Tensor, " d"]
) -> tuple[Float[Tensor, "m 2*d"], Float[Tensor, " m"]]:
    """Return G and b of functions at z with length-scales l, under a kernel of length-scales s."""
    return _Features.apply(z, l, s)


class _Features(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, l: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        d = z.shape[1]
        G = z.new_empty(z.shape[0], 2 * d)
        w = G[:, :d]
        torch.square(l, out=w).add_(s.square()).reciprocal_()
        zw = torch.mul(z, w, out=G[:, d:])
        b = torch.log(2 * s * l * w).mul_(0.5).addcmul_(z, zw, value=-1).sum(1)
        ctx.save_for_backward(z, l, s, G)
        return G, b

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """With ẇ the whole gradient in w: ∂z = w(∂(zw) - 2z ∂b), ∂l = ½∂b/l - 2lw²ẇ, ∂s alike."""
        z, l, s, G = ctx.saved_tensors
        grad_G, grad_b = grads[0], grads[1][:, None]
        d = z.shape[1]
        w, grad_w, grad_zw = G[:, :d], grad_G[:, :d], grad_G[:, d:]
        grad_z = torch.mul(z, grad_b).mul_(-2).add_(grad_zw).mul_(w)
        # 2w²ẇ, with ẇ = ∂w + z ∂(zw) + ∂b (½/w - z²)
        total = z.square().mul_(-grad_b).addcmul_(z, grad_zw).add_(grad_w)
        total.mul_(w).add_(0.5 * grad_b).mul_(w).mul_(2)
        half = 0.5 * grad_b
        grad_s = half.sum() / s - s * total.sum(0)
        grad_l = total.mul_(l).neg_().addcdiv_(half, l)
        return grad_z, grad_l, grad_s
