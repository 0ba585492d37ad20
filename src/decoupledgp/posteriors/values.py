"""One shared basis by the natural parameters of its values u themselves, as Hensman et al. 2013 have them.

The whitened family of `shared.py` keeps q(C⁻¹u) while functions and kernel move, and so q(f) bends with
the prior. Here q(u) stays as it is, u being f at the functions (or ρψᵀf, for those with scales of their
own): S⁻¹ and S⁻¹m do not change until the next natural-gradient step. The two are the same wherever
functions and kernel stand still. Where they move, this one is as sensitive as K is ill-conditioned.

S⁻¹ is never formed: Λ and h are kept in the coordinates of the Cholesky factor of ρ²K as it was, ρ₀C₀, and
read in those of the present one, ρC = ρ₀C₀T, as I + Λ = Tᵀ(I + Λ₀)T and h = Tᵀh₀.
"""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel, ScaleKernel
from jaxtyping import Float
from torch import Tensor

from decoupledgp.bases import Basis, Functions
from decoupledgp.kernels import DoubleKernel
from decoupledgp.ops import kernel_dense, safe_cholesky
from decoupledgp.posteriors.shared import SharedMeasure, SharedPosterior

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

    def here(
        self, shift: Float[Tensor, "m p"], precision: Float[Tensor, "p m m"]
    ) -> tuple[Float[Tensor, "m p"], Float[Tensor, "p m m"]]:
        """Return the natural parameters in the coordinates of the present Cholesky factor."""
        T = torch.linalg.solve_triangular(self.reference, self.cholesky_K, upper=False)
        ratio = self.rho.double() / self.reference_rho
        moved = T.T @ (self.eye + precision) @ T
        return ratio * (T.T @ shift), ratio.square()[:, None, None] * moved - self.eye

    def factor(self, inner: Float[Tensor, "p m m"]) -> Float[Tensor, "p m m"]:
        """Return the Cholesky factor of I + Λ, or say why there is none."""
        try:
            return super().factor(inner)
        except torch.linalg.LinAlgError:
            raise torch.linalg.LinAlgError(
                "functions and kernel have moved so far in one step that the posterior of the values "
                "has lost its definiteness; lower learning_rate, or use whitened=True"
            ) from None

    @property
    def V(self) -> Float[Tensor, "p k k"]:
        """There is none: K⁻¹ - K⁻¹SK⁻¹ need not be positive."""
        raise ValueError(
            "the posterior of an SVGPRegressor with whitened=False has no factor B, which a KL to another "
            "posterior needs; use whitened=True"
        )

    def prepare(self) -> None:
        """Compute what all rows share, before several threads ask for it at once."""
        _ = self.white_factor, self.rho

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
