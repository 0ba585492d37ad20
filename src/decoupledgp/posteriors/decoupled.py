"""The decoupled posterior (the paper's DGP): parameters a, L and the two bases, free to grow."""

from __future__ import annotations

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from jaxtyping import Float
from torch import Tensor, nn

from decoupledgp.bases import Basis
from decoupledgp.bases.base import grow
from decoupledgp.kernels import scaled_kernel
from decoupledgp.posteriors.measure import DecoupledMeasure, marginal_distribution

__all__ = ["DecoupledPosterior"]

INITIAL_FACTOR = 1e-8
"""Diagonal of L for a new function. L = 0 would be a stationary point, since B = LLᵀ; this far below
the rounding error of H = I + LᵀK_βL the posterior does not change, yet gradients are not zero."""

SMALLEST_DIAGONAL = 1e-12
"""Jacobi preconditioning divides by ψᵀψ; a function of no length has no coefficient to speak of."""


class DecoupledPosterior(nn.Module):
    """μ = Ψ_α a, Σ = (I + Ψ_β L Lᵀ Ψ_βᵀ)⁻¹, for P outputs that share kernel shape and bases.

    `kernel` is any GPyTorch kernel; `posterior.kernel` is it with one scale per output.
    Each output has coefficients (a column of `mean_coefficients`), a factor L and a scale of its
    own, so P outputs are P independent decoupled GPs on the same bases.

    `preconditioner="jacobi"` learns a₀ and L₀ with a = diag(K_α)⁻¹a₀ and L = diag(K_β)⁻¹L₀
    (appendix A.1). `partially_shared=True` makes the covariance basis the first functions of the
    mean basis too (appendix A.2): `mean_basis` then holds only the further ones.
    """

    def __init__(
        self,
        kernel: Kernel,
        mean_basis: Basis,
        cov_basis: Basis,
        *,
        n_outputs: int = 1,
        preconditioner: str = "jacobi",
        partially_shared: bool = False,
    ):
        super().__init__()
        if preconditioner not in ("jacobi", "none"):
            raise ValueError(f'preconditioner must be "jacobi" or "none", not {preconditioner!r}')
        self.kernel = scaled_kernel(kernel, n_outputs).to(mean_basis.locations)
        self.mean_basis, self.cov_basis = mean_basis, cov_basis
        self.preconditioner, self.partially_shared = preconditioner, partially_shared
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
        base = self.kernel.base_kernel
        beta, alpha = self.cov_basis.at(base), self.mean_basis.at(base)
        if self.partially_shared:
            alpha = beta.join(alpha)
        a: Tensor = self.mean_coefficients
        L = self.cov_factor.tril()
        if self.preconditioner == "jacobi":
            a = a / alpha.diagonal().clamp_min(SMALLEST_DIAGONAL)[:, None]
            L = L / beta.diagonal().clamp_min(SMALLEST_DIAGONAL)[:, None]
        if double:
            alpha, a = alpha.double(), a.double()
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
        self.mean_basis.add(mean_rows)
        self.cov_basis.add(cov_rows)
        self.mean_coefficients = grow(self.mean_coefficients, (self.n_mean, self.n_outputs))
        self.cov_factor = grow(self.cov_factor, (self.n_outputs, self.n_cov, self.n_cov))
        new = torch.arange(old, self.n_cov)
        self.cov_factor[:, new, new] = INITIAL_FACTOR
