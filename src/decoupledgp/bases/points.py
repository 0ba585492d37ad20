"""Inducing points: ψ_m = φ_{z_m}, for any kernel."""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float, Int
from torch import Tensor, nn

from decoupledgp.bases.base import Basis, Functions, grow
from decoupledgp.bases.functions import KernelFunctions, MaternFunctions, SEFunctions
from decoupledgp.kernels import is_radial, is_se_ard

__all__ = ["PointBasis"]


class PointBasis(Basis):
    """Basis functions φ_z at learnt locations z, shape (M, D)."""

    def __init__(self, locations: Float[Tensor, "m d"]):
        super().__init__()
        self.locations = nn.Parameter(locations.detach().clone())

    def at(self, kernel: Kernel) -> Functions:
        """Return the functions; SE and Matérn kernels take the faster road."""
        if not is_radial(kernel):
            return KernelFunctions(kernel, self.locations)
        s = kernel.lengthscale.squeeze(0).expand(self.n_features)
        if is_se_ard(kernel):
            return SEFunctions(self.locations, s, None)
        return MaternFunctions(self.locations, s, kernel.nu)

    def add(self, x: Float[Tensor, "n d"]) -> None:
        """Append the points x."""
        old = len(self)
        self.locations = grow(self.locations, (old + len(x), self.n_features))
        self.locations.data[old:] = x

    def take(self, index: Int[Tensor, " s"]) -> PointBasis:
        """Return a new basis of some of the points."""
        return PointBasis(torch.index_select(self.locations, 0, index))
