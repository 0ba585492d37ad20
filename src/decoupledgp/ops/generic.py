"""K_Xα a for any GPyTorch kernel: blocks of functions, each computed again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from gpytorch.kernels import AdditiveKernel, ProductKernel, ScaleKernel
from jaxtyping import Float
from linear_operator import to_dense
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from decoupledgp.ops.exponential import blocks

__all__ = ["kernel_dense", "kernel_matmul"]


def kernel_dense(
    kernel: Callable[..., Any], x: Float[Tensor, "n d"], z: Float[Tensor, "m d"]
) -> Float[Tensor, "n m"]:
    """Return the kernel matrix itself, for bases small enough to hold it.

    Sums and products are taken of dense matrices here, not by GPyTorch: it writes a matrix plus a
    low-rank one (RBF + linear, say) through a Cholesky factor, which can fail and is not asked for.
    """
    if isinstance(kernel, AdditiveKernel | ProductKernel) and kernel.active_dims is None:
        parts = (kernel_dense(part, x, z) for part in kernel.kernels)
        combine = torch.add if isinstance(kernel, AdditiveKernel) else torch.mul
        return reduce(combine, parts)
    if isinstance(kernel, ScaleKernel) and kernel.active_dims is None and not kernel.batch_shape:
        return kernel.outputscale * kernel_dense(kernel.base_kernel, x, z)
    return to_dense(kernel(x, z))


def kernel_matmul(
    kernel: Callable[..., Any],
    x: Float[Tensor, "n d"],
    z: Float[Tensor, "m d"],
    A: Float[Tensor, "m p"],
) -> Float[Tensor, "n p"]:
    """Return k(x, z) A in O(n · block) memory, with gradients in x, z, A and the kernel's parameters."""
    out = x.new_zeros(x.shape[0], A.shape[1])
    for part in blocks(x.shape[0], z.shape[0]):
        out = out + checkpoint(_product, kernel, x, z[part], A[part], use_reentrant=False)
    return out


def _product(kernel: Callable[..., Any], x: Tensor, z: Tensor, A: Tensor) -> Tensor:
    return kernel_dense(kernel, x, z) @ A
