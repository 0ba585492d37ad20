"""A shared basis for mean and covariance, and a large further basis for the mean: hybrid, orthogonal.

Both add residual functions ψ_r with coefficients a_r to the shared family on β. In the hybrid family
(appendix A.3 of the paper) they come as they are, μ = Ψ_βa_β + Ψ_ra_r; in the orthogonal family
(Salimbeni et al. 2018) without what β can express, μ = Ψ_βa_β + (I - P_β)Ψ_ra_r. With t = C⁻¹K_βra_r
and μ_v the mean of the whitened values v, the mean's quadratic is

    hybrid      ‖μ_v‖² + 2 t·μ_v + a_rᵀK_ra_r
    orthogonal  ‖μ_v‖² + a_rᵀK_ra_r - ‖t‖²

of which only a_rᵀK_ra_r is estimated from sampled columns: all costs are linear in the residual basis.
"""

from __future__ import annotations

from functools import cached_property

import torch
from gpytorch.kernels import Kernel, ScaleKernel
from jaxtyping import Float, Int
from torch import Tensor, nn

from decoupledgp.bases import Basis, Functions
from decoupledgp.bases.base import grow
from decoupledgp.posteriors.preconditioners import (
    MEAN_PRECONDITIONERS,
    Diagonal,
    Nystrom,
    known,
    lengthened,
    mean_preconditioner,
)
from decoupledgp.posteriors.shared import SharedMeasure, SharedPosterior

__all__ = ["ResidualMeasure", "ResidualPosterior"]


class ResidualMeasure(SharedMeasure):
    """The shared measure with residual functions in the mean."""

    def __init__(
        self,
        kernel: ScaleKernel,
        functions: Functions,
        shift: Float[Tensor, "m p"],
        precision: Float[Tensor, "p m m"],
        residual: Functions,
        a_residual: Float[Tensor, "r p"],
        *,
        orthogonal: bool,
    ):
        super().__init__(kernel, functions, shift, precision)
        self.residual, self.a_residual, self.orthogonal = residual, a_residual, orthogonal

    @property
    def mean_functions(self) -> Functions:
        """The residual functions, whose Gram matrix is sampled."""
        return self.residual

    @cached_property
    def overlap(self) -> Float[Tensor, "m p"]:
        """t = C⁻¹K_βra_r: what of the residual mean the shared basis can express."""
        projected = self.beta.project(self.residual.double(), self.a_residual.double())
        return torch.linalg.solve_triangular(self.cholesky_K, projected, upper=False)

    @cached_property
    def coupling(self) -> Float[Tensor, "m p"]:
        """The gradient of the cross term in μ_v: the orthogonal family has none."""
        return torch.zeros_like(self.shift) if self.orthogonal else -self.overlap

    @property
    def white_mean(self) -> Float[Tensor, "m p"]:
        """What the shared functions add to the mean, less what orthogonality takes from the residual."""
        return self.white - self.overlap if self.orthogonal else self.white

    @cached_property
    def a_shared(self) -> Float[Tensor, "m p"]:
        """Coefficients of the shared functions in the mean."""
        return torch.linalg.solve_triangular(self.cholesky_K.T, self.white_mean, upper=True)

    def prepare(self) -> None:
        """Compute what all rows share, before several threads ask for it at once."""
        super().prepare()
        _ = self.a_shared

    def mean(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n p"]:
        """Return E f(x). Time O(n (M_r + M_β) D), memory O(n · block + n M_β)."""
        further = self.residual.matmul(x.to(self.a_residual), self.a_residual)
        return self.rho.double() * (self.beta.evaluate(x.double()) @ self.a_shared + further)

    def marginals(
        self, x: Float[Tensor, "n d"], U: Float[Tensor, "m n"]
    ) -> tuple[Float[Tensor, "n p"], Float[Tensor, "n p"]]:
        """Return mean and variance of f at rows that have been whitened."""
        shared, variance = super().marginals(x, U)
        further = self.residual.matmul(x.to(self.a_residual), self.a_residual)
        return shared + self.rho.double() * further, variance

    def kl(self, columns: Int[Tensor, " s"] | None = None) -> Float[Tensor, ""]:
        """Return KL[q ‖ prior]; the residual quadratic from sampled columns, if given."""
        quadratic = self.residual.quadratic(self.a_residual, columns)
        if self.orthogonal:
            quadratic = quadratic - self.overlap.square().sum()
        else:
            quadratic = quadratic + 2 * (self.overlap * self.white).sum()
        return super().kl() + 0.5 * quadratic


class ResidualPosterior(SharedPosterior):
    """The shared posterior on `basis` with a residual mean on `residual_basis`, both growing."""

    def __init__(
        self,
        kernel: Kernel,
        residual_basis: Basis,
        basis: Basis,
        *,
        orthogonal: bool,
        n_outputs: int = 1,
        mean_preconditioner: str = "jacobi",
    ):
        super().__init__(kernel, basis, n_outputs=n_outputs)
        self.residual_basis, self.orthogonal = residual_basis, orthogonal
        if orthogonal and mean_preconditioner == "nystrom":
            raise ValueError(
                "the orthogonal family takes what the covariance basis can express out of the "
                'residual mean, so there is nothing for "nystrom" to precondition; use "jacobi"'
            )
        self.mean_preconditioner = known(mean_preconditioner, MEAN_PRECONDITIONERS)
        self.residual_coefficients = nn.Parameter(
            residual_basis.locations.new_zeros(len(residual_basis), n_outputs)
        )

    @property
    def n_mean(self) -> int:
        """Number of mean functions, shared ones included."""
        return len(self.basis) + len(self.residual_basis)

    @property
    def mean_basis(self) -> Basis:
        """The residual basis."""
        return self.residual_basis

    def measure(self, *, double: bool = False) -> ResidualMeasure:
        """Return the Gaussian measure at the present parameters, differentiable in them.

        `double` evaluates the residual mean in float64 too (all else always is).
        """
        base = self.kernel.base_kernel
        residual, beta = self.residual_basis.at(base), self.basis.at(base)
        P = mean_preconditioner(self.mean_preconditioner, residual, beta)
        a = P.solve(self.residual_coefficients)
        residual, a = (
            (residual.double(), a.double())
            if double
            else (residual, a.to(self.residual_coefficients))
        )
        shared = (self.kernel, beta, self.shift, self.precision)
        return ResidualMeasure(*shared, residual, a, orthogonal=self.orthogonal)

    @torch.no_grad()
    def add(self, mean_rows: Float[Tensor, "n d"], cov_rows: Float[Tensor, "k d"]) -> None:
        """Append functions φ_x: q does not change.

        The covariance rows must be the first of the mean rows and go to the shared basis, the others
        to the residual one. In the orthogonal family a new shared function takes its direction away
        from the residual mean, and is given it.
        """
        if not torch.equal(mean_rows[: len(cov_rows)], cov_rows):
            raise ValueError("the shared rows must be the first of the mean rows")
        old, a = self.n_cov, self._preconditioner().solve(self.residual_coefficients)
        super().add(cov_rows, cov_rows)
        if self.orthogonal and len(cov_rows) and len(self.residual_basis):
            self.shift[old:] = self.measure().overlap[old:]
        self.residual_basis.add(mean_rows[len(cov_rows) :])
        shape = (len(self.residual_basis), self.n_outputs)
        self.residual_coefficients = grow(self.residual_coefficients, shape)
        self.residual_coefficients.copy_(self._preconditioner().multiply(lengthened(a, shape[0])))

    def _preconditioner(self) -> Diagonal | Nystrom:
        base = self.kernel.base_kernel
        functions = self.residual_basis.at(base), self.basis.at(base)
        return mean_preconditioner(self.mean_preconditioner, *functions)
