"""The prior's kernel k = ρ² g: GPyTorch kernels, with the scale ρ² held apart, one per output.

The paper's basis functions live in the RKHS of the *unscaled* kernel g, so that the prior is a
standard Gaussian measure and ρ belongs to the likelihood side only. A `ScaleKernel` whose batch has
one entry per output says exactly that: its `base_kernel` is g, its `outputscale` is ρ².
"""

from __future__ import annotations

import math
from typing import Any

import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from decoupledgp.ops import MATERN_ORDERS, kernel_dense

__all__ = [
    "DoubleKernel",
    "check_kernel",
    "is_radial",
    "is_se_ard",
    "likeness",
    "log_positive",
    "median_distance",
    "median_distances",
    "prior_diagonal",
    "radial_kernel",
    "scaled_kernel",
    "se_ard",
    "smoothness",
]

MEDIAN_ROWS = 2048
"""Rows that the median trick looks at."""

SMALLEST_LENGTHSCALE = 1e-6
"""In standard deviations of an input: its square is still far from float32's smallest number."""


def log_positive(lower: float = 0.0) -> GreaterThan:
    """Return a constraint value > lower that is learnt on the log scale, as the paper does."""
    return GreaterThan(lower, transform=torch.exp, inv_transform=torch.log)


def se_ard(n_features: int) -> RBFKernel:
    """Return the squared-exponential kernel with one length-scale s_d per feature."""
    constraint = log_positive(SMALLEST_LENGTHSCALE)
    return RBFKernel(ard_num_dims=n_features, lengthscale_constraint=constraint)


def radial_kernel(n_features: int, smoothness: float) -> RBFKernel | MaternKernel:
    """Return the Matérn-ARD kernel of order ν, the SE-ARD kernel for ∞; their parameters are alike."""
    if smoothness == math.inf:
        return se_ard(n_features)
    constraint = log_positive(SMALLEST_LENGTHSCALE)
    return MaternKernel(smoothness, ard_num_dims=n_features, lengthscale_constraint=constraint)


def smoothness(kernel: Kernel) -> float:
    """Return the order ν of a Matérn kernel, or ∞ for the squared exponential."""
    return float(kernel.nu) if isinstance(kernel, MaternKernel) else math.inf


def is_se_ard(kernel: Kernel) -> bool:
    """Whether g is the plain SE(-ARD) kernel, for which the multiscale functions exist."""
    return type(kernel) is RBFKernel and _is_plain(kernel)


def is_radial(kernel: Kernel) -> bool:
    """Whether g is a plain function of distances in length-scales for which there are fast operators."""
    matern = type(kernel) is MaternKernel and kernel.nu in MATERN_ORDERS and _is_plain(kernel)
    return matern or is_se_ard(kernel)


def _is_plain(kernel: Kernel) -> bool:
    return kernel.active_dims is None and not kernel.batch_shape


def scaled_kernel(kernel: Kernel, n_outputs: int) -> ScaleKernel:
    """Return `kernel` as ρ² g with one ρ² per output.

    A `ScaleKernel` gives its base kernel and its scale; any other kernel is g itself, with ρ² = 1.
    """
    outputscale: Tensor | float = 1.0
    learnt = True
    if type(kernel) is ScaleKernel:
        if kernel.batch_shape == (n_outputs,):
            return kernel
        learnt = kernel.raw_outputscale.requires_grad
        kernel, outputscale = kernel.base_kernel, kernel.outputscale.detach()
    scaled = ScaleKernel(
        kernel, batch_shape=torch.Size([n_outputs]), outputscale_constraint=log_positive()
    )
    scaled.outputscale = torch.as_tensor(outputscale).expand(n_outputs).clone()
    scaled.raw_outputscale.requires_grad_(learnt)
    return scaled


def check_kernel(kernel: Kernel, n_features: int, n_outputs: int) -> None:
    """Raise a ValueError if a user's kernel does not fit the table."""
    scales = kernel if type(kernel) is ScaleKernel else None
    for part in (module for module in kernel.modules() if isinstance(module, Kernel)):
        name = type(part).__name__
        allowed = ((), (1,), (n_outputs,)) if part is scales else ((),)
        if tuple(part.batch_shape) not in allowed:
            raise ValueError(
                f"kernel: {name} has batch_shape {tuple(part.batch_shape)}; leave it out"
            )
        columns = range(n_features) if part.active_dims is None else part.active_dims.tolist()
        if max(columns) >= n_features:
            raise ValueError(
                f"kernel: {name} has active_dims {columns}, X has {n_features} columns"
            )
        if part.ard_num_dims not in (None, len(columns)):
            raise ValueError(
                f"kernel: {name} has ard_num_dims={part.ard_num_dims} for {len(columns)} columns"
            )


def prior_diagonal(kernel: Kernel, x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """Return g(x, x) for every row."""
    return x.new_ones(len(x)) if is_radial(kernel) else kernel(x, diag=True)


@torch.no_grad()
def likeness(
    kernel: Kernel, x: Float[Tensor, "n d"], z: Float[Tensor, "n d"]
) -> Float[Tensor, " n"]:
    """Return the correlation of f at the rows of x with f at those of z, pair by pair."""
    pairs = kernel(x, z, diag=True)
    scale = (prior_diagonal(kernel, x) * prior_diagonal(kernel, z)).sqrt()
    return torch.where(scale > 0, pairs / scale, 0)


class DoubleKernel:
    """A kernel evaluated in float64 at its present parameters, whatever their type; differentiable."""

    def __init__(self, kernel: Kernel):
        self.dense = _Dense(kernel)
        tensors = [*self.dense.named_parameters(), *self.dense.named_buffers()]
        self.values = {
            name: value.double() if value.is_floating_point() else value for name, value in tensors
        }

    def __call__(self, x: Tensor, z: Tensor | None = None, diag: bool = False) -> Tensor:
        """Return g(x, z), or g(x, x) row by row."""
        # A sub-kernel that occurs twice must be swapped once only: no tying of weights.
        return functional_call(self.dense, self.values, (x, z, diag), tie_weights=False)


class _Dense(nn.Module):
    def __init__(self, kernel: Kernel):
        super().__init__()
        self.kernel = kernel

    def forward(self, x: Tensor, z: Tensor | None, diag: bool) -> Any:
        if diag:
            return self.kernel(x, diag=True)
        return kernel_dense(self.kernel, x, x if z is None else z)


def median_distance(x: Float[Tensor, "n d"]) -> float:
    """Return the median of the pairwise distances between distinct rows (the "median trick").

    Rows that coincide, or nearly so, say nothing about a length-scale and are left out; if all do,
    every scale fits, and the distance of two independent standardised rows, √(2d), is as good as any.
    Of a long table `MEDIAN_ROWS` evenly spaced rows are looked at: time and memory stay bounded.
    """
    few = x[:: -(-len(x) // MEDIAN_ROWS)] if len(x) else x
    distances = torch.pdist(few.double())
    distances = distances[distances > 2 * SMALLEST_LENGTHSCALE]
    return float(distances.median()) if len(distances) else float(2 * x.shape[1]) ** 0.5


def median_distances(x: Float[Tensor, "n d"]) -> Float[Tensor, " d"]:
    """Return the median distance of distinct rows in each feature alone.

    Functions that begin with these are narrow and hardly overlap if there are many features; with the
    median distance between whole rows, which is more than √d times as long, nearly all of them do.
    """
    return torch.tensor([median_distance(column) for column in x.split(1, dim=1)]).to(x)
