"""The decoupled posterior (the paper's DGP): parameters a, L and the two bases, free to grow."""

from __future__ import annotations

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from jaxtyping import Float
from torch import Tensor, nn

from decoupledgp.bases import Basis, Functions
from decoupledgp.bases.base import grow
from decoupledgp.kernels import scaled_kernel
from decoupledgp.posteriors.measure import DecoupledMeasure, marginal_distribution
from decoupledgp.posteriors.preconditioners import (
    COV_PRECONDITIONERS,
    MEAN_PRECONDITIONERS,
    Diagonal,
    Nystrom,
    cov_factor,
    known,
    lengthened,
    mean_preconditioner,
)

__all__ = ["DecoupledPosterior"]

INITIAL_FACTOR = 1e-8
"""Diagonal of L for a new function. L = 0 would be a stationary point, since B = LLᵀ; this far below
the rounding error of H = I + LᵀK_βL the posterior does not change, yet gradients are not zero."""


class DecoupledPosterior(nn.Module):
    """μ = Ψ_α a, Σ = (I + Ψ_β L Lᵀ Ψ_βᵀ)⁻¹, for P outputs that share kernel shape and bases.

    `kernel` is any GPyTorch kernel; `posterior.kernel` is it with one scale per output.
    Each output has coefficients (a column of `mean_coefficients`), a factor L and a scale of its
    own, so P outputs are P independent decoupled GPs on the same bases.

    a and L are parametrised by a₀ and L₀ (appendix A.1, `preconditioners.py`): `mean_preconditioner`
    is "none", "jacobi" (a = diag(K_α)⁻¹a₀) or "nystrom" (K_α as the covariance basis sees it);
    `cov_preconditioner` is "none", "jacobi" or "full". `partially_shared=True` makes the covariance
    basis the first functions of the mean basis too (appendix A.2): `mean_basis` then holds only the
    further ones.
    """

    def __init__(
        self,
        kernel: Kernel,
        mean_basis: Basis,
        cov_basis: Basis,
        *,
        n_outputs: int = 1,
        mean_preconditioner: str = "jacobi",
        cov_preconditioner: str = "jacobi",
        partially_shared: bool = False,
    ):
        super().__init__()
        self.kernel = scaled_kernel(kernel, n_outputs).to(mean_basis.locations)
        self.mean_basis, self.cov_basis = mean_basis, cov_basis
        self.mean_preconditioner = known(mean_preconditioner, MEAN_PRECONDITIONERS)
        self.cov_preconditioner = known(cov_preconditioner, COV_PRECONDITIONERS)
        self.partially_shared = partially_shared
        locations = mean_basis.locations
        n_cov = len(cov_basis)
        self.mean_coefficients = nn.Parameter(locations.new_zeros(self.n_mean, n_outputs))
        self.cov_factor = nn.Parameter(
            INITIAL_FACTOR * torch.eye(n_cov).to(locations).repeat(n_outputs, 1, 1)
        )

    @property
    def n_outputs(self) -> int:
        """Number of outputs P."""
        return self.kernel.batch_shape[0]

    @property
    def n_mean(self) -> int:
        """Number of mean functions M_α, shared ones included."""
        return len(self.mean_basis) + (len(self.cov_basis) if self.partially_shared else 0)

    @property
    def n_cov(self) -> int:
        """Number of covariance functions M_β."""
        return len(self.cov_basis)

    def measure(self, *, double: bool = False) -> DecoupledMeasure:
        """Return the Gaussian measure at the present parameters, differentiable in them.

        `double` evaluates the mean in float64 too (the covariance side always is).
        """
        alpha, beta = self._functions()
        P = mean_preconditioner(self.mean_preconditioner, alpha, beta)
        a = P.solve(self.mean_coefficients)
        alpha, a = (alpha.double(), a.double()) if double else (alpha, a.to(self.mean_coefficients))
        L = cov_factor(self.cov_preconditioner, beta, self.cov_factor.tril())
        return DecoupledMeasure(self.kernel, alpha, a, beta, L)

    def forward(self, x: Float[Tensor, "n d"], full_covariance: bool = False) -> MultivariateNormal:
        """Return q(f(x)) for a GPyTorch likelihood: batch (P,), or none for one output.

        By default only the marginal variances are computed and the covariance is diagonal, which is
        all that an expected log-likelihood needs.
        """
        return marginal_distribution(self.measure(), x, full_covariance)

    @torch.no_grad()
    def add(self, mean_rows: Float[Tensor, "n d"], cov_rows: Float[Tensor, "k d"]) -> None:
        """Append functions φ_x at the rows with zero coefficients: q does not change.

        Parameters are replaced by longer ones; an optimiser must be told (`GradientLearner.grow`).
        With shared functions the covariance rows must be the first of the mean rows, and no mean
        rows may have come alone before, so that the shared functions stay in front.
        """
        if self.partially_shared:
            if len(cov_rows) and len(self.mean_basis):
                raise ValueError("shared functions must be added before mean functions alone")
            if not torch.equal(mean_rows[: len(cov_rows)], cov_rows):
                raise ValueError("the shared rows must be the first of the mean rows")
            mean_rows = mean_rows[len(cov_rows) :]
        old = self.n_cov
        a = self._preconditioner().solve(self.mean_coefficients)
        self.mean_basis.add(mean_rows)
        self.cov_basis.add(cov_rows)
        self.mean_coefficients = grow(self.mean_coefficients, (self.n_mean, self.n_outputs))
        self.cov_factor = grow(self.cov_factor, (self.n_outputs, self.n_cov, self.n_cov))
        new = torch.arange(old, self.n_cov)
        self.cov_factor[:, new, new] = INITIAL_FACTOR
        self.mean_coefficients.copy_(self._preconditioner().multiply(lengthened(a, self.n_mean)))

    def _functions(self) -> tuple[Functions, Functions]:
        """Return the mean's and the covariance's functions at the present kernel."""
        base = self.kernel.base_kernel
        alpha, beta = self.mean_basis.at(base), self.cov_basis.at(base)
        return (beta.join(alpha) if self.partially_shared else alpha), beta

    def _preconditioner(self) -> Diagonal | Nystrom:
        return mean_preconditioner(self.mean_preconditioner, *self._functions())
