"""The two kinds of functions: squared exponentials (points or multiscale), and any kernel's."""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float, Int
from torch import Tensor

from decoupledgp import ops
from decoupledgp.bases.base import Functions
from decoupledgp.kernels import DoubleKernel

__all__ = ["KernelFunctions", "SEFunctions"]

FAR_IN_FLOAT32 = 1e3
"""Squared distance from the basis' centre, in length-scales, beyond which a product of float32
numbers would have an error over 1e-4 in the exponent; the features are float64 then."""

FARTHEST = 1e6
"""Length-scales from the centre at which rows and functions are put if they are even farther: there
float64 still gives squared distances to 1e-3, and everything nearer is infinitely far for a kernel."""


class SEFunctions(Functions):
    """Generalized SE-ARD functions with locations z and length-scales l_m (appendix C.1).

    Against data, φ_xᵀψ_m = exp(F_x·G_m + b_m) with features that depend on rows or functions only
    (`ops.exp_matmul`). `l = None` stands for l_m = s: plain inducing points, whose features are half
    as long and whose Gram matrix is again an exponential of a product.
    """

    def __init__(
        self, z: Float[Tensor, "m d"], s: Float[Tensor, " d"], l: Float[Tensor, "m d"] | None
    ):
        self.z, self.s, self.l = z, s, l
        # Distances do not care where the origin is, but products of large numbers do.
        self.origin = z.detach().mean(0) if len(z) else torch.zeros_like(s.detach())
        self.edge = FARTHEST * s.detach()
        if z.dtype == torch.float32 and self._reach() > FAR_IN_FLOAT32:
            z, s, l = z.double(), s.double(), None if l is None else l.double()
        centred = self._centre(z) if z.dtype == torch.float64 else z - self.origin
        if l is None:
            scaled = centred / s
            self.G = torch.cat([scaled, scaled.new_ones(len(z), 1)], 1)
            self.b = -0.5 * scaled.square().sum(1)
        else:
            self.G, self.b = ops.multiscale_features(centred, l, s)

    def __len__(self) -> int:
        return len(self.z)

    def evaluate(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n m"]:
        return ops.exp_dense(self._row_features(x), self.G, self.b).to(x.dtype)

    def matmul(self, x: Float[Tensor, "n d"], A: Float[Tensor, "m p"]) -> Float[Tensor, "n p"]:
        product = ops.exp_matmul(self._row_features(x), self.G, self.b, A.to(self.G.dtype))
        return product.to(A.dtype)

    def gram(self, other: Functions | None = None) -> Float[Tensor, "m k"]:
        other = self if other is None else other
        assert isinstance(other, SEFunctions)
        # By differences, for points too: symmetric to the last bit, wherever the functions are.
        return ops.multiscale_gram(self.z, self.lengthscales(), other.z, other.lengthscales())

    def diagonal(self) -> Float[Tensor, " m"]:
        return torch.ones_like(self.b)

    def project(self, other: Functions, A: Float[Tensor, "k p"]) -> Float[Tensor, "m p"]:
        assert isinstance(other, SEFunctions)
        if self.l is None:
            return other.matmul(self.z, A)
        return ops.multiscale_matmul(self.z, self.l, other.z, other.lengthscales(), A)

    def quadratic(
        self, A: Float[Tensor, "m p"], columns: Int[Tensor, " s"] | None = None
    ) -> Float[Tensor, ""]:
        some, A_s = (self, A) if columns is None else (self.take(columns), A[columns])
        scale = len(self) / max(len(some), 1)
        if self.l is None:
            return scale * (A * some.matmul(self.z, A_s)).sum()
        return scale * ops.multiscale_quadratic(self.z, self.l, A, some.z, some.lengthscales(), A_s)

    def take(self, index: Int[Tensor, " s"]) -> SEFunctions:
        return SEFunctions(self.z[index], self.s, None if self.l is None else self.l[index])

    def double(self) -> SEFunctions:
        l = None if self.l is None else self.l.double()
        return SEFunctions(self.z.double(), self.s.double(), l)

    def single(self) -> SEFunctions:
        l = None if self.l is None else self.l.float()
        return SEFunctions(self.z.float(), self.s.float(), l)

    def join(self, other: Functions) -> SEFunctions:
        assert isinstance(other, SEFunctions)
        z = torch.cat([self.z, other.z])
        if self.l is None and other.l is None:
            return SEFunctions(z, self.s, None)
        return SEFunctions(z, self.s, torch.cat([self.lengthscales(), other.lengthscales()]))

    def lengthscales(self) -> Float[Tensor, "m d"]:
        """Return l_m for every function, also where it is the kernel's own."""
        return self.s.expand_as(self.z) if self.l is None else self.l

    @torch.no_grad()
    def _reach(self) -> float:
        """Largest squared distance of a function from the origin, in length-scales."""
        if self.z.is_meta or not len(self.z):
            return 0.0
        l = self.s if self.l is None else self.l
        squares = (self.z - self.origin).square() / (l.square() + self.s.square())
        return float(squares.sum(1).max())

    def _centre(self, x: Tensor) -> Tensor:
        """Move x to the origin, and no farther than float64 can tell distances."""
        return (x - self.origin).clamp(-self.edge, self.edge)

    def _row_features(self, x: Tensor) -> Tensor:
        centred = self._centre(x.to(self.G.dtype))
        if self.l is None:
            scaled = centred / self.s
            return torch.cat([scaled, -0.5 * scaled.square().sum(1, keepdim=True)], 1)
        return torch.cat([-centred.square(), 2 * centred], 1)


class KernelFunctions(Functions):
    """Functions φ_z of any GPyTorch kernel: inducing points."""

    parallel = False

    def __init__(self, kernel: Kernel | DoubleKernel, z: Float[Tensor, "m d"]):
        self.kernel, self.z = kernel, z

    def __len__(self) -> int:
        return len(self.z)

    def evaluate(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n m"]:
        return ops.kernel_dense(self.kernel, x, self.z)

    def matmul(self, x: Float[Tensor, "n d"], A: Float[Tensor, "m p"]) -> Float[Tensor, "n p"]:
        return ops.kernel_matmul(self.kernel, x, self.z, A)

    def gram(self, other: Functions | None = None) -> Float[Tensor, "m k"]:
        return (self if other is None else other).evaluate(self.z)

    def diagonal(self) -> Float[Tensor, " m"]:
        return self.kernel(self.z, diag=True)

    def project(self, other: Functions, A: Float[Tensor, "k p"]) -> Float[Tensor, "m p"]:
        return other.matmul(self.z, A)

    def quadratic(
        self, A: Float[Tensor, "m p"], columns: Int[Tensor, " s"] | None = None
    ) -> Float[Tensor, ""]:
        some, A_s = (self, A) if columns is None else (self.take(columns), A[columns])
        return len(self) / max(len(some), 1) * (A * some.matmul(self.z, A_s)).sum()

    def take(self, index: Int[Tensor, " s"]) -> KernelFunctions:
        return KernelFunctions(self.kernel, self.z[index])

    def double(self) -> KernelFunctions:
        if isinstance(self.kernel, DoubleKernel):
            return self
        return KernelFunctions(DoubleKernel(self.kernel), self.z.double())

    def single(self) -> KernelFunctions:
        return self

    def join(self, other: Functions) -> KernelFunctions:
        assert isinstance(other, KernelFunctions)
        return KernelFunctions(self.kernel, torch.cat([self.z, other.z]))
