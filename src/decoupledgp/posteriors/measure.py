"""Gaussian measures with decoupled bases: μ = Ψ_α a and Σ = (I + Ψ_β B Ψ_βᵀ)⁻¹ (equation 7).

A measure is a posterior at fixed parameters. It is built once per step or once per trained model,
and everything that both the likelihood and the KL need, the Cholesky factor of H above all, is
computed once in it.

The covariance side works in float64 whatever the parameters' type: it is small, and the variance is
a difference of nearly equal numbers. H = I + LᵀK_βL has no eigenvalue below 1, so its Cholesky
factor exists without jitter.
"""

from __future__ import annotations

from functools import cached_property

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import ScaleKernel
from jaxtyping import Float, Int
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from decoupledgp.bases import Functions
from decoupledgp.kernels import DoubleKernel, prior_diagonal
from decoupledgp.ops import kernel_dense, row_norms

__all__ = ["DecoupledMeasure", "kl_divergence", "marginal_distribution"]


class DecoupledMeasure:
    """q(f) = N(f | Ψ_α a_p, (I + Ψ_β L_p L_pᵀ Ψ_βᵀ)⁻¹) for each of P outputs that share the bases."""

    def __init__(
        self,
        kernel: ScaleKernel,
        alpha: Functions,
        a: Float[Tensor, "m p"],
        beta: Functions,
        L: Float[Tensor, "p k k"],
    ):
        self.kernel, self.alpha, self.a = kernel, alpha, a
        self.beta, self.L = beta.double(), L.double()

    @property
    def n_outputs(self) -> int:
        """Number of outputs P."""
        return self.a.shape[1]

    def prepare(self) -> None:
        """Compute what all rows share, before several threads ask for it at once."""
        _ = self.V, self.rho

    @cached_property
    def rho(self) -> Float[Tensor, " p"]:
        """The prior's scale ρ per output: f_p(x) = ρ_p φ_xᵀ f."""
        return self.kernel.outputscale.sqrt()

    def mean(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n p"]:
        """Return E f(x). Time O(n M_α D), memory O(n · block)."""
        return self.rho.to(self.a) * self.alpha.matmul(x, self.a)

    def variance(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n p"]:
        """Return Var f(x), in float64. Time O(n M_β (D + P M_β))."""
        explained = row_norms(self.beta.evaluate(x.double()), self.V)
        prior = prior_diagonal(self.kernel.base_kernel, x).double()
        # Rounding can push a variance that is all explained below zero.
        return self.rho.double().square() * (prior[:, None] - explained).clamp_min(0)

    def covariance(
        self, x: Float[Tensor, "n d"], x2: Float[Tensor, "k d"] | None = None
    ) -> Float[Tensor, "p n k"]:
        """Return Cov(f(x), f(x2)), in float64. Memory O(P n k)."""
        other = x if x2 is None else x2
        kernel = DoubleKernel(self.kernel.base_kernel)
        prior = kernel_dense(kernel, x.double(), other.double())
        left = self._explained(x)
        right = left if x2 is None else self._explained(x2)
        return self.rho.double().square()[:, None, None] * (prior - left @ right.mT)

    @cached_property
    def K_beta(self) -> Float[Tensor, "k k"]:
        """Gram matrix of the covariance basis."""
        return self.beta.gram()

    @cached_property
    def cholesky_H(self) -> Float[Tensor, "p k k"]:
        """Cholesky factor of H = I + LᵀK_βL."""
        H = self.L.mT @ self.K_beta @ self.L
        return torch.linalg.cholesky(H + torch.eye(len(self.beta)).to(H))

    @cached_property
    def V(self) -> Float[Tensor, "p k k"]:
        """Factor of (B⁻¹ + K_β)⁻¹ = L H⁻¹ Lᵀ = V Vᵀ, without any inverse."""
        return torch.linalg.solve_triangular(self.cholesky_H, self.L.mT, upper=False).mT

    @cached_property
    def log_det_H(self) -> Float[Tensor, " p"]:
        """log|H| = log|I + K_βB|."""
        return 2 * self.cholesky_H.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    @property
    def mean_functions(self) -> Functions:
        """The functions of the mean whose Gram matrix is sampled."""
        return self.alpha

    def kl(self, columns: Int[Tensor, " s"] | None = None) -> Float[Tensor, ""]:
        """Return KL[q ‖ standard Gaussian measure], summed over outputs (equation 8)."""
        quadratic = self.alpha.quadratic(self.a, columns)
        return 0.5 * (quadratic - self.explained_trace + self.log_det_H.sum())

    @property
    def explained_trace(self) -> Float[Tensor, ""]:
        """tr K_β (B⁻¹ + K_β)⁻¹, summed over outputs."""
        return (self.V * (self.K_beta @ self.V)).sum()

    def output(self, index: int) -> DecoupledMeasure:
        """Return the measure of one output alone."""
        part = DecoupledMeasure(
            self.kernel, self.alpha, self.a[:, [index]], self.beta, self.L[[index]]
        )
        part.K_beta = self.K_beta
        return part

    def _explained(self, x: Tensor) -> Tensor:
        """K_xβ V, so that its rows' squared lengths are the explained share of the prior variance."""
        return self.beta.evaluate(x.double()) @ self.V


def marginal_distribution(
    q: DecoupledMeasure, x: Float[Tensor, "n d"], full_covariance: bool
) -> MultivariateNormal:
    """Return q(f(x)) as GPyTorch has it: batch (P,), or none for one output."""
    mean = q.mean(x).T
    covariance = (
        q.covariance(x).to(mean)
        if full_covariance
        else DiagLinearOperator(q.variance(x).T.to(mean))
    )
    if q.n_outputs == 1:
        mean, covariance = mean[0], covariance[0]
    return MultivariateNormal(mean, covariance)


def kl_divergence(
    q: DecoupledMeasure,
    prior: DecoupledMeasure | None = None,
    columns: Int[Tensor, " s"] | None = None,
) -> Float[Tensor, ""]:
    """Return KL[q ‖ prior], summed over outputs (equation 8; theorem 1 for a general prior).

    Without a prior: the standard Gaussian measure. `columns` picks the columns S of the mean's Gram
    matrix that its quadratic term is estimated from, without bias; None takes all of them in
    O(M_α²) time. With a general prior they index α and ᾱ joined, and both measures must be of the
    same kernel and kind of basis: (μ - μ̄) is one element of their common span.
    Constants that do not depend on q are kept, so that KL[q ‖ q] = 0.
    """
    if prior is None:
        return q.kl(columns)

    difference = q.alpha.join(prior.alpha)
    coefficients = torch.cat([q.a, -prior.a])
    projected = prior.beta.project(difference.double(), coefficients.double())  # Ψ_β̄ᵀ(μ - μ̄)
    cross = prior.L.mT @ prior.beta.gram(q.beta) @ q.V  # L̄ᵀ K_β̄β V
    return 0.5 * (
        difference.quadratic(coefficients, columns)
        + (prior.L.mT @ projected.T.unsqueeze(-1)).square().sum()
        + (prior.L * (prior.K_beta @ prior.L)).sum()  # tr K_β̄ B̄
        - q.explained_trace
        - cross.square().sum()
        + q.log_det_H.sum()
        - prior.log_det_H.sum()
    )
