"""Kinds of functions: squared exponentials (points or multiscale), Matérn points, and any kernel's."""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float, Int
from torch import Tensor

from decoupledgp import ops
from decoupledgp.bases.base import Functions
from decoupledgp.bases.frame import Frame
from decoupledgp.kernels import DoubleKernel

__all__ = ["KernelFunctions", "MaternFunctions", "SEFunctions"]

ROUNDING = 1e-6
"""Error of a squared distance in float32, as a share of the squared distance from the basis' centre."""


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
        self.frame = Frame(z, s)
        widths = s if l is None else l
        if self.frame.is_too_wide(z, widths.square() + s.square()):
            z, s, l = z.double(), s.double(), None if l is None else l.double()
        if l is None:
            self.G, self.b = self.frame.functions(z)
        else:
            self.G, self.b = ops.multiscale_features(self.frame.places(z), l, s)

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

    def _row_features(self, x: Tensor) -> Tensor:
        x = x.to(self.G.dtype)
        if self.l is None:
            return self.frame.rows(x)
        centred = self.frame.centre(x)
        return torch.cat([-centred.square(), 2 * centred], 1)


class PointFunctions(Functions):
    """Functions φ_z of a kernel that may be evaluated anywhere: inner products are values."""

    z: Float[Tensor, "m d"]

    def __len__(self) -> int:
        return len(self.z)

    def project(self, other: Functions, A: Float[Tensor, "k p"]) -> Float[Tensor, "m p"]:
        return other.matmul(self.z, A)

    def quadratic(
        self, A: Float[Tensor, "m p"], columns: Int[Tensor, " s"] | None = None
    ) -> Float[Tensor, ""]:
        some, A_s = (self, A) if columns is None else (self.take(columns), A[columns])
        return len(self) / max(len(some), 1) * (A * some.matmul(self.z, A_s)).sum()


class MaternFunctions(PointFunctions):
    """Functions φ_z of the Matérn-ARD kernel of order ν and length-scales s (`ops.matern`)."""

    def __init__(self, z: Float[Tensor, "m d"], s: Float[Tensor, " d"], nu: float):
        self.z, self.s, self.nu = z, s, nu
        self.frame = Frame(z, s)
        # Of order 1/2 the kernel is 1 - r near a function's place, and r a root.
        self.meeting_error = (ROUNDING * self.frame.reach(z)) ** 0.5 if nu == 0.5 else 0.0
        wide = self.frame.is_too_wide(z, 2 * s.square())
        self.G, self.b = self.frame.functions(z.double() if wide else z)

    def evaluate(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n m"]:
        F = self.frame.rows(x.to(self.G.dtype))
        return ops.matern(torch.addmm(self.b, F, self.G.T), self.nu).to(x.dtype)

    def matmul(self, x: Float[Tensor, "n d"], A: Float[Tensor, "m p"]) -> Float[Tensor, "n p"]:
        F = self.frame.rows(x.to(self.G.dtype))
        return ops.matern_matmul(F, self.G, self.b, A.to(self.G.dtype), self.nu).to(A.dtype)

    def gram(self, other: Functions | None = None) -> Float[Tensor, "m k"]:
        other = self if other is None else other
        assert isinstance(other, MaternFunctions)
        origin = self.frame.origin  # a difference of large quotients would be rounded
        return ops.matern_gram((self.z - origin) / self.s, (other.z - origin) / self.s, self.nu)

    def diagonal(self) -> Float[Tensor, " m"]:
        return torch.ones_like(self.b)

    def take(self, index: Int[Tensor, " s"]) -> MaternFunctions:
        return MaternFunctions(self.z[index], self.s, self.nu)

    def double(self) -> MaternFunctions:
        return MaternFunctions(self.z.double(), self.s.double(), self.nu)

    def single(self) -> MaternFunctions:
        return MaternFunctions(self.z.float(), self.s.float(), self.nu)

    def join(self, other: Functions) -> MaternFunctions:
        assert isinstance(other, MaternFunctions)
        return MaternFunctions(torch.cat([self.z, other.z]), self.s, self.nu)


class KernelFunctions(PointFunctions):
    """Functions φ_z of any GPyTorch kernel: inducing points."""

    parallel = False

    def __init__(self, kernel: Kernel | DoubleKernel, z: Float[Tensor, "m d"]):
        self.kernel, self.z = kernel, z

    def evaluate(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n m"]:
        return ops.kernel_dense(self.kernel, x, self.z)

    def matmul(self, x: Float[Tensor, "n d"], A: Float[Tensor, "m p"]) -> Float[Tensor, "n p"]:
        return ops.kernel_matmul(self.kernel, x, self.z, A)

    def gram(self, other: Functions | None = None) -> Float[Tensor, "m k"]:
        return (self if other is None else other).evaluate(self.z)

    def diagonal(self) -> Float[Tensor, " m"]:
        return self.kernel(self.z, diag=True)

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
