"""One shared basis by the natural parameters of its values u themselves, as Hensman et al. 2013 have them.

The whitened family of `shared.py` keeps q(C⁻¹u) while functions and kernel move, and so q(f) bends with
the prior. Here q(u) stays as it is, u being f at the functions (or ρψᵀf, for those with scales of their
own): S⁻¹ and S⁻¹m do not change until the next natural-gradient step. The two are the same wherever
functions and kernel stand still. Where they move, this one is as sensitive as K is ill-conditioned.

S⁻¹ is never formed: Λ₀ and h₀ are kept in the coordinates of the Cholesky factor of ρ²K as it was at the last
step, ρ₀C₀. Autograd's gradients see u's mean and a root of S, which do not depend on the present ρC; those
of a step are by hand (`ops.held_values`). The next natural-gradient step reads Λ and h in its coordinates,
ρC = ρ₀C₀T, as I + Λ = Tᵀ(I + Λ₀)T and h = Tᵀh₀.
"""

from __future__ import annotations

from functools import cached_property

import torch
from gpytorch.kernels import Kernel, ScaleKernel
from jaxtyping import Float, Int
from torch import Tensor

from decoupledgp.bases import Basis, Functions
from decoupledgp.kernels import DoubleKernel, prior_diagonal
from decoupledgp.ops import Held, held_values, kernel_dense, safe_cholesky
from decoupledgp.posteriors.shared import (
    Observed,
    SharedMeasure,
    SharedPosterior,
    log_determinant,
)

__all__ = ["ValuesMeasure", "ValuesPosterior"]


class ValuesMeasure(SharedMeasure):
    """A shared measure whose q(u) does not depend on basis and kernel; Λ need not be positive."""

    def __init__(
        self,
        kernel: ScaleKernel,
        functions: Functions,
        shift: Float[Tensor, "m p"],
        precision: Float[Tensor, "p m m"],
        reference: Float[Tensor, "m m"],
        reference_rho: Float[Tensor, " p"],
    ):
        self.reference, self.reference_rho = reference.double(), reference_rho.double()
        super().__init__(kernel, functions, shift, precision)

    @cached_property
    def cholesky_natural(self) -> Float[Tensor, "p m m"]:
        """Cholesky factor of I + Λ₀, or an error that says why there is none."""
        return _definite(self.eye + self.natural[1])

    @cached_property
    def values(self) -> tuple[Float[Tensor, "m p"], Float[Tensor, "p m m"]]:
        """Mean of u and R with RRᵀ its covariance, both divided by ρ: constants but for that."""
        shift, _ = self.natural
        C = self.reference.T.expand_as(self.cholesky_natural)
        root = torch.linalg.solve_triangular(self.cholesky_natural, C, upper=False).mT
        half = torch.linalg.solve_triangular(self.cholesky_natural, shift.T[..., None], upper=False)
        ratio = self.reference_rho / self.rho.double()
        return ratio * (root @ half)[..., 0].T, ratio[:, None, None] * root

    @cached_property
    def white(self) -> Float[Tensor, "m p"]:
        """Mean of v = C⁻¹u."""
        return torch.linalg.solve_triangular(self.cholesky_K, self.values[0], upper=False)

    @cached_property
    def white_factor(self) -> Float[Tensor, "p m m"]:
        """W with WᵀW the covariance of v."""
        return torch.linalg.solve_triangular(self.cholesky_K, self.values[1], upper=False).mT

    @cached_property
    def log_det_H(self) -> Float[Tensor, " p"]:
        """log|I + Λ|, the prior's volume of u by the posterior's."""
        ratio = self.rho.double() / self.reference_rho
        prior = log_determinant(self.cholesky_K) - log_determinant(self.reference)
        return log_determinant(self.cholesky_natural) + prior + 2 * len(self.eye) * ratio.log()

    @cached_property
    def change(self) -> Float[Tensor, "p m m"]:
        """T, which leads from the present coordinates to those of the reference; without gradient."""
        C, ratio = self.cholesky_K.detach(), self.rho.detach().double() / self.reference_rho
        return ratio[:, None, None] * torch.linalg.solve_triangular(self.reference, C, upper=False)

    @cached_property
    def shift(self) -> Float[Tensor, "m p"]:
        """h in the coordinates of the present Cholesky factor; without gradient."""
        return (self.change.mT @ self.natural[0].T[..., None])[..., 0].T

    @cached_property
    def precision(self) -> Float[Tensor, "p m m"]:
        """Λ in the coordinates of the present Cholesky factor; without gradient."""
        return self.change.mT @ ((self.eye + self.natural[1]) @ self.change) - self.eye

    @cached_property
    def held(self) -> Held:
        """The values in the coordinates of the present Cholesky factor; without gradient."""
        factor = _definite(self.eye + self.precision)
        v = torch.cholesky_solve(self.shift.T[..., None], factor)[..., 0].T
        S = torch.cholesky_inverse(factor)
        return Held(self.cholesky_K.detach(), v, S, -log_determinant(factor))

    def observe(
        self, x: Float[Tensor, "n d"], columns: Int[Tensor, " s"] | None = None
    ) -> Observed:
        """Return what a minibatch's bound and natural gradient need, with gradients by hand."""
        rho = self.rho.double()
        cross = self.beta.evaluate(x.double()).T
        mean, explained, kl, rows = held_values(self.gram, cross, rho / rho.detach(), self.held)
        prior = prior_diagonal(self.kernel.base_kernel, x).double()
        variance = rho.square() * (prior[:, None] - explained).clamp_min(0)
        mean = rho * mean
        return Observed(mean, variance, kl, mean.detach(), rows)

    @property
    def V(self) -> Float[Tensor, "p k k"]:
        """There is none: K⁻¹ - K⁻¹SK⁻¹ need not be positive."""
        raise ValueError(
            "the posterior of an SVGPRegressor with whitened=False has no factor B, which a KL to another "
            "posterior needs; use whitened=True"
        )

    def prepare(self) -> None:
        """Compute what all rows share, before several threads ask for it at once."""
        _ = self.white_factor, self.rho, self.a

    def variance(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n p"]:
        """Return Var f(x), in float64. Time O(n M (D + P M))."""
        return self.marginals(x, self.whitened(x))[1]

    def covariance(
        self, x: Float[Tensor, "n d"], x2: Float[Tensor, "k d"] | None = None
    ) -> Float[Tensor, "p n k"]:
        """Return Cov(f(x), f(x2)), in float64. Memory O(P n k)."""
        other = x if x2 is None else x2
        kernel = DoubleKernel(self.kernel.base_kernel)
        prior = kernel_dense(kernel, x.double(), other.double())
        U, U2 = self.whitened(x), self.whitened(other)
        left = (self.white_factor @ U).mT @ (self.white_factor @ U2)
        return self.rho.double().square()[:, None, None] * (prior - U.T @ U2 + left)


class ValuesPosterior(SharedPosterior):
    """The shared posterior with q(u) held fixed while basis and kernel move."""

    reference: Tensor
    reference_rho: Tensor

    def __init__(self, kernel: Kernel, basis: Basis, *, n_outputs: int = 1):
        super().__init__(kernel, basis, n_outputs=n_outputs)
        m = len(basis)
        self.register_buffer("reference", self.precision.new_zeros(m, m))
        self.register_buffer("reference_rho", self.precision.new_ones(n_outputs))
        self.rebase()

    def measure(self, *, double: bool = True) -> ValuesMeasure:
        """Return the Gaussian measure at the present parameters, in float64 whatever `double` says."""
        functions = self.basis.at(self.kernel.base_kernel)
        parameters = self.shift, self.precision, self.reference, self.reference_rho
        return ValuesMeasure(self.kernel, functions, *parameters)

    @torch.no_grad()
    def add(self, mean_rows: Float[Tensor, "n d"], cov_rows: Float[Tensor, "k d"]) -> None:
        """Append functions φ_x at the rows: q does not change."""
        q = self.measure()
        self.shift, self.precision = q.shift, q.precision
        super().add(mean_rows, cov_rows)
        self.rebase()

    @torch.no_grad()
    def mix(
        self,
        rate: float,
        shift: Float[Tensor, "m p"],
        precision: Float[Tensor, "p m m"],
        q: SharedMeasure,
    ) -> None:
        """Take a natural-gradient step from q, in whose coordinates the targets are."""
        self.shift = q.shift.detach().lerp(shift, rate)
        self.precision = q.precision.detach().lerp(precision, rate)
        self.reference, self.reference_rho = q.cholesky_K.detach(), q.rho.detach().double()

    @torch.no_grad()
    def rebase(self) -> None:
        """Say that Λ and h are in the coordinates of the present functions and kernel."""
        functions = self.basis.at(self.kernel.base_kernel).double()
        self.reference = safe_cholesky(functions.gram())
        self.reference_rho = self.kernel.outputscale.sqrt().double()


def _definite(precision: Float[Tensor, "p m m"]) -> Float[Tensor, "p m m"]:
    """Return the Cholesky factor of the values' precision, or say why there is none."""
    try:
        return torch.linalg.cholesky(precision)
    except torch.linalg.LinAlgError:
        raise torch.linalg.LinAlgError(
            "functions and kernel have moved so far in one step that the posterior of the values "
            "has lost its definiteness; lower learning_rate, or use whitened=True"
        ) from None
