"""One basis for mean and covariance, by natural parameters: the family of SVI (Hensman et al. 2013).

With K = CCᵀ the Gram matrix of the basis and v = C⁻¹u its whitened values, the prior is v ~ N(0, I)
and q(v) = N((I + Λ)⁻¹h, (I + Λ)⁻¹). Natural-gradient steps mix Λ and h with targets of which every
one is positive semi-definite, so q is proper by construction, whatever the step size up to 1.
In the notation of the decoupled family: α = β, a = C⁻ᵀ(I + Λ)⁻¹h and B = C⁻ᵀΛC⁻¹.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel, ScaleKernel
from jaxtyping import Float, Int
from torch import Tensor, nn

from decoupledgp.bases import Basis, Functions
from decoupledgp.kernels import prior_diagonal, scaled_kernel
from decoupledgp.ops import RowGram, safe_cholesky
from decoupledgp.posteriors.measure import DecoupledMeasure, marginal_distribution

__all__ = ["Observed", "SharedMeasure", "SharedPosterior", "log_determinant"]


class Observed(NamedTuple):
    """Mean and variance of f at rows and the KL, differentiable; the rest is without gradient."""

    mean: Float[Tensor, "n p"]
    variance: Float[Tensor, "n p"]
    kl: Float[Tensor, ""]
    own: Float[Tensor, "n p"]
    """ρUᵀE[v]: what the values at the functions say of the mean."""
    rows: RowGram
    """C⁻¹K_Zx, and its products."""


class SharedMeasure(DecoupledMeasure):
    """A decoupled measure with α = β, given by its natural parameters; differentiable in the basis."""

    def __init__(
        self,
        kernel: ScaleKernel,
        functions: Functions,
        shift: Float[Tensor, "m p"],
        precision: Float[Tensor, "p m m"],
    ):
        self.kernel, functions = kernel, functions.double()
        self.alpha, self.beta = functions, functions
        self.gram = functions.gram()
        self.cholesky_K = safe_cholesky(self.gram)
        self.eye = torch.eye(len(functions)).to(self.cholesky_K)
        self.natural = shift.double(), precision.double()

    @property
    def n_outputs(self) -> int:
        """Number of outputs P."""
        return self.natural[0].shape[1]

    def prepare(self) -> None:
        """Compute what all rows share, before several threads ask for it at once."""
        super().prepare()
        _ = self.a

    @cached_property
    def cholesky_natural(self) -> Float[Tensor, "p m m"]:
        """Cholesky factor of I + Λ, which exists without jitter."""
        return torch.linalg.cholesky(self.eye + self.natural[1])

    @cached_property
    def a(self) -> Float[Tensor, "m p"]:  # type: ignore[override]  # not given but computed
        """Coefficients of the functions in the mean."""
        return torch.linalg.solve_triangular(self.cholesky_K.T, self.white, upper=True)

    @property
    def shift(self) -> Float[Tensor, "m p"]:
        """h in the coordinates of the Cholesky factor of K."""
        return self.natural[0]

    @property
    def precision(self) -> Float[Tensor, "p m m"]:
        """Λ in the coordinates of the Cholesky factor of K."""
        return self.natural[1]

    @cached_property
    def white(self) -> Float[Tensor, "m p"]:
        """Mean of v."""
        return torch.cholesky_solve(self.shift.T[..., None], self.cholesky_natural)[..., 0].T

    @property
    def white_mean(self) -> Float[Tensor, "m p"]:
        """What the shared functions add to the mean, in the coordinates of Λ and h."""
        return self.white

    @cached_property
    def white_factor(self) -> Float[Tensor, "p m m"]:
        """W with WᵀW the covariance of v: the inverse of the Cholesky factor of I + Λ."""
        return torch.linalg.solve_triangular(self.cholesky_natural, self.eye, upper=False)

    @cached_property
    def log_det_H(self) -> Float[Tensor, " p"]:
        """log|I + Λ|."""
        return log_determinant(self.cholesky_natural)

    @cached_property
    def K_beta(self) -> Float[Tensor, "k k"]:
        """Gram matrix of the basis, with the jitter of its Cholesky factor."""
        return self.cholesky_K @ self.cholesky_K.T

    @cached_property
    def root(self) -> Float[Tensor, "p k k"]:
        """R with Λ = RRᵀ, to the rounding error of Λ, which may be singular."""
        m = len(self.beta)
        size = self.precision.diagonal(dim1=1, dim2=2).amax(1) if m else self.precision.new_zeros(0)
        jitter = 1e-15 * m * (1 + size) if m else size
        return torch.linalg.cholesky(self.precision + jitter[:, None, None] * self.eye)

    @cached_property
    def cholesky_H(self) -> Float[Tensor, "p k k"]:
        """Cholesky factor of H = I + RᵀR."""
        return torch.linalg.cholesky(self.root.mT @ self.root + self.eye)

    @cached_property
    def white_V(self) -> Float[Tensor, "p k k"]:
        """Factor of I - (I + Λ)⁻¹ = Λ(I + Λ)⁻¹."""
        return torch.linalg.solve_triangular(self.cholesky_H, self.root.mT, upper=False).mT

    @cached_property
    def V(self) -> Float[Tensor, "p k k"]:
        """Factor of K⁻¹ - K⁻¹SK⁻¹ = C⁻ᵀ(I - (I + Λ)⁻¹)C⁻¹."""
        return torch.linalg.solve_triangular(self.cholesky_K.T, self.white_V, upper=True)

    @cached_property
    def coupling(self) -> Float[Tensor, "m p"]:
        """What a family with more in its mean adds to the target of h."""
        return torch.zeros_like(self.shift)

    def kl(self, columns: Int[Tensor, " s"] | None = None) -> Float[Tensor, ""]:
        """Return KL[q ‖ prior]; nothing is sampled, the basis being small."""
        explained = self.precision.shape[0] * len(self.beta) - self.white_factor.square().sum()
        return 0.5 * (self.white.square().sum() - explained + self.log_det_H.sum())

    def whitened(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "m n"]:
        """Return C⁻¹K_Zx: the rows in the coordinates of Λ and h."""
        cross = self.beta.evaluate(x.double()).T
        return torch.linalg.solve_triangular(self.cholesky_K, cross, upper=False)

    def marginals(
        self, x: Float[Tensor, "n d"], U: Float[Tensor, "m n"]
    ) -> tuple[Float[Tensor, "n p"], Float[Tensor, "n p"]]:
        """Return mean and variance of f at rows that have been whitened.

        Without V, which costs as much as M rows and pays for many only.
        """
        rho = self.rho.double()
        prior = prior_diagonal(self.kernel.base_kernel, x).double() - U.square().sum(0)
        left = (self.white_factor @ U).square().sum(1).T
        return rho * (U.T @ self.white_mean), rho.square() * (prior[:, None] + left).clamp_min(0)

    def observe(
        self, x: Float[Tensor, "n d"], columns: Int[Tensor, " s"] | None = None
    ) -> Observed:
        """Return what a minibatch's bound and natural gradient need, computed together."""
        U = self.whitened(x)
        mean, variance = self.marginals(x, U)
        own = self.rho.detach().double() * (U.detach().T @ self.white.detach())
        return Observed(mean, variance, self.kl(columns), own, RowGram(U.detach()))


class SharedPosterior(nn.Module):
    """q on one growing basis for P outputs; Λ and h are buffers, which natural gradients move."""

    partially_shared = True
    shift: Tensor
    precision: Tensor

    def __init__(self, kernel: Kernel, basis: Basis, *, n_outputs: int = 1):
        super().__init__()
        self.kernel = scaled_kernel(kernel, n_outputs).to(basis.locations)
        self.basis = basis
        m = len(basis)
        like = basis.locations.detach().double()
        self.register_buffer("shift", like.new_zeros(m, n_outputs))
        self.register_buffer("precision", like.new_zeros(n_outputs, m, m))

    @property
    def n_outputs(self) -> int:
        """Number of outputs P."""
        return self.kernel.batch_shape[0]

    @property
    def n_mean(self) -> int:
        """Number of functions M."""
        return len(self.basis)

    @property
    def n_cov(self) -> int:
        """Number of functions M."""
        return len(self.basis)

    @property
    def mean_basis(self) -> Basis:
        """The basis."""
        return self.basis

    @property
    def cov_basis(self) -> Basis:
        """The basis."""
        return self.basis

    def measure(self, *, double: bool = True) -> SharedMeasure:
        """Return the Gaussian measure at the present parameters, in float64 whatever `double` says."""
        functions = self.basis.at(self.kernel.base_kernel)
        return SharedMeasure(self.kernel, functions, self.shift, self.precision)

    def forward(self, x: Float[Tensor, "n d"], full_covariance: bool = False) -> MultivariateNormal:
        """Return q(f(x)) for a GPyTorch likelihood: batch (P,), or none for one output."""
        return marginal_distribution(self.measure(), x, full_covariance)

    @torch.no_grad()
    def add(self, mean_rows: Float[Tensor, "n d"], cov_rows: Float[Tensor, "k d"]) -> None:
        """Append functions φ_x at the rows: q does not change.

        The Cholesky factor of K keeps its leading corner, so the old functions keep their whitened
        coordinates, and zeros in Λ and h say of the new ones what the prior says.
        """
        if not torch.equal(mean_rows, cov_rows):
            raise ValueError("with one basis, mean and covariance get the same rows")
        old = self.n_cov
        self.basis.add(cov_rows)
        shift, precision = self.shift, self.precision
        self.shift = shift.new_zeros(self.n_cov, self.n_outputs)
        self.precision = precision.new_zeros(self.n_outputs, self.n_cov, self.n_cov)
        self.shift[:old] = shift
        self.precision[:, :old, :old] = precision

    @torch.no_grad()
    def mix(
        self,
        rate: float,
        shift: Float[Tensor, "m p"],
        precision: Float[Tensor, "p m m"],
        q: SharedMeasure,
    ) -> None:
        """Take a natural-gradient step: (1 - rate) of q's parameters, rate of the targets."""
        self.shift.lerp_(shift.to(self.shift), rate)
        self.precision.lerp_(precision.to(self.precision), rate)


def log_determinant(factor: Float[Tensor, "*p m m"]) -> Float[Tensor, "*p"]:
    """Return log|CCᵀ|."""
    return 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
