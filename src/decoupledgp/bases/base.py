"""What a basis is: parameters that grow (`Basis`), and functions at one setting of the kernel.

A `Basis` owns parameters (locations, perhaps scales). `basis.at(kernel)` gives its functions
ψ_1 … ψ_M in the RKHS of the unscaled kernel g, and those answer every question the mathematics
asks: values at data φ_xᵀψ_m, products with coefficients, inner products ψ_mᵀψ_n, sampled quadratics.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float, Int
from torch import Tensor, nn

__all__ = ["Basis", "Functions", "grow"]


class Functions(ABC):
    """Basis functions under fixed hyper-parameters. Differentiable; holds no parameters itself."""

    parallel = True
    """Whether several threads may evaluate them at once."""

    meeting_error = 0.0
    """Error in float32 of a function's value at its own place, beyond rounding."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def evaluate(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n m"]:
        """Return φ_xᵀψ_m for all rows and functions: K_Xβ without ρ. For small bases."""

    @abstractmethod
    def matmul(self, x: Float[Tensor, "n d"], A: Float[Tensor, "m p"]) -> Float[Tensor, "n p"]:
        """Return K_Xα A without ρ, in blocks: memory linear in n and in m."""

    @abstractmethod
    def gram(self, other: Functions | None = None) -> Float[Tensor, "m k"]:
        """Return all inner products ψ_mᵀψ_n, with the others or among themselves. For small bases."""

    @abstractmethod
    def diagonal(self) -> Float[Tensor, " m"]:
        """Return ψ_mᵀψ_m."""

    @abstractmethod
    def project(self, other: Functions, A: Float[Tensor, "k p"]) -> Float[Tensor, "m p"]:
        """Return Ψᵀ(Ψ_other A), for an `other` that may be large."""

    @abstractmethod
    def quadratic(
        self, A: Float[Tensor, "m p"], columns: Int[Tensor, " s"] | None = None
    ) -> Float[Tensor, ""]:
        """Return Σ_p A_pᵀ K A_p, or its unbiased estimate (M/|S|) Σ_p A_pᵀ K_{:,S} A_{S,p}."""

    @abstractmethod
    def take(self, index: Int[Tensor, " s"]) -> Functions:
        """Return some of the functions."""

    @abstractmethod
    def double(self) -> Functions:
        """Return the same functions in float64."""

    @abstractmethod
    def single(self) -> Functions:
        """Return the same functions in float32, where they can be."""

    @abstractmethod
    def join(self, other: Functions) -> Functions:
        """Return these functions followed by the others, of the same kind."""


class Basis(nn.Module, ABC):
    """A growing set of basis functions and their parameters."""

    locations: nn.Parameter

    def __len__(self) -> int:
        return self.locations.shape[0]

    @property
    def n_features(self) -> int:
        """Number of inputs D."""
        return self.locations.shape[1]

    @abstractmethod
    def at(self, kernel: Kernel) -> Functions:
        """Return the functions in the RKHS of the unscaled kernel g."""

    @abstractmethod
    def add(self, x: Float[Tensor, "n d"]) -> None:
        """Append one function per row, φ_x itself (the paper's c = 1)."""

    @abstractmethod
    def take(self, index: Int[Tensor, " s"]) -> Basis:
        """Return a new basis of some of the functions, with parameters of its own."""


def grow(parameter: nn.Parameter, shape: tuple[int, ...], fill: float = 0.0) -> nn.Parameter:
    """Return a larger parameter with the old values in its leading corner and `fill` elsewhere."""
    larger = torch.full(shape, fill, dtype=parameter.dtype, device=parameter.device)
    larger[tuple(slice(n) for n in parameter.shape)] = parameter.detach()
    return nn.Parameter(larger, requires_grad=parameter.requires_grad)
