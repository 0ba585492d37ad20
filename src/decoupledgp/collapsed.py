"""Bounds whose Gaussian posterior is solved for: Titsias' collapsed bound and the exact evidence.

Both are of Gaussian noise and of one basis for mean and covariance, in float64, for P outputs that
share the basis and have a scale ρ² and a noise σ² of their own. Both solutions are decoupled
measures with α = β: the coefficients a and the factor L of B = LLᵀ are returned, and everything
else (predictions, draws, KL) is the decoupled family's.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from decoupledgp.bases import Functions
from decoupledgp.ops import safe_cholesky

__all__ = ["Coefficients", "Collapsed", "Evidence", "log_evidence", "precision_root"]


class Coefficients(NamedTuple):
    """The optimal measure: μ = Ψa and Σ = (I + Ψ L Lᵀ Ψᵀ)⁻¹, per output."""

    a: Float[Tensor, "m p"]
    L: Float[Tensor, "p m m"]


class Evidence:
    """log N(y | 0, ρ²K + σ²I): the exact GP, with the basis X. Time O(P n³), memory O(P n²).

    C = I + τK with τ = ρ²/σ² has no eigenvalue below 1: no jitter.
    """

    def __init__(
        self,
        functions: Functions,
        rho2: Float[Tensor, " p"],
        noise: Float[Tensor, " p"],
        y: Float[Tensor, "n p"],
    ):
        K = functions.gram()
        self.rho2, self.noise, self.y = rho2, noise, y
        tau = rho2 / noise
        eye = torch.eye(len(K)).to(K)
        self.cholesky_C = torch.linalg.cholesky(eye + tau[:, None, None] * K)
        self.solved = torch.cholesky_solve(y.T[..., None], self.cholesky_C)[..., 0].T  # C⁻¹y

    def bound(self) -> Float[Tensor, ""]:
        """The log evidence, summed over outputs."""
        log_det = self.cholesky_C.diagonal(dim1=1, dim2=2).log().sum(1)
        fit = 0.5 * (self.y * self.solved).sum(0) / self.noise
        return -(0.5 * len(self.y) * torch.log(2 * math.pi * self.noise) + log_det + fit).sum()

    def mean(self) -> Float[Tensor, "n p"]:
        """The posterior mean of f at the rows."""
        return self.y - self.solved

    def coefficients(self) -> Coefficients:
        """a = ρσ⁻²C⁻¹y, B = τI."""
        eye = torch.eye(len(self.y)).to(self.y)
        root = (self.rho2 / self.noise).sqrt()
        return Coefficients(self.solved * self.rho2.sqrt() / self.noise, root[:, None, None] * eye)


class Collapsed:
    """Titsias' bound for a basis Z: log N(y | 0, Q + σ²I) - tr(ρ²K_X - Q) / 2σ², Q = ρ²K_XZK_Z⁻¹K_ZX.

    Time O(n m² + P m³), memory O(n m + P m²). `prior_sum` is Σ_n g(x_n, x_n).
    """

    def __init__(
        self,
        functions: Functions,
        rho2: Float[Tensor, " p"],
        noise: Float[Tensor, " p"],
        x: Float[Tensor, "n d"],
        y: Float[Tensor, "n p"],
        prior_sum: Float[Tensor, ""],
    ):
        self.rho2, self.noise, self.y, self.prior_sum = rho2, noise, y, prior_sum
        self.tau = rho2 / noise
        self.cholesky_K = safe_cholesky(functions.gram())
        self.U = torch.linalg.solve_triangular(
            self.cholesky_K, functions.evaluate(x).T, upper=False
        )
        self.G = self.U @ self.U.T
        eye = torch.eye(len(self.G)).to(self.G)
        self.cholesky_M = torch.linalg.cholesky(eye + self.tau[:, None, None] * self.G)
        projected = (self.U @ y).T[..., None]
        self.half = torch.linalg.solve_triangular(self.cholesky_M, projected, upper=False)

    def bound(self) -> Float[Tensor, ""]:
        """The collapsed bound, summed over outputs."""
        log_det = self.cholesky_M.diagonal(dim1=1, dim2=2).log().sum(1)
        fit = self.y.square().sum(0) - self.tau * self.half.square().sum((1, 2))
        missing = self.prior_sum - self.G.diagonal().sum()
        return -(
            0.5 * len(self.y) * torch.log(2 * math.pi * self.noise)
            + log_det
            + 0.5 * fit / self.noise
            + 0.5 * self.tau * missing
        ).sum()

    def mean(self) -> Float[Tensor, "n p"]:
        """The posterior mean of f at the rows."""
        return self.U.T @ (self.tau * self._whitened())

    def coefficients(self) -> Coefficients:
        """a = ρσ⁻²K_Z^{-½ᵀ}M⁻¹Uy and the lower triangular root of B = τK_Z⁻¹K_ZXK_XZK_Z⁻¹."""
        scaled = self._whitened() * self.rho2.sqrt() / self.noise
        a = torch.linalg.solve_triangular(self.cholesky_K.T, scaled, upper=True)
        _, L = precision_root(self.cholesky_K, self.G)
        return Coefficients(a, self.tau.sqrt()[:, None, None] * L)

    def _whitened(self) -> Tensor:
        """M⁻¹Uy, (m, p)."""
        return torch.linalg.solve_triangular(self.cholesky_M.mT, self.half, upper=True)[..., 0].T


def precision_root(
    cholesky_K: Float[Tensor, "m m"], G: Float[Tensor, "m m"]
) -> tuple[Float[Tensor, " m"], Float[Tensor, "m m"]]:
    """Return G's eigenvalues and the lower triangular root of C⁻ᵀGC⁻¹, for K = CCᵀ."""
    values, vectors = torch.linalg.eigh(G)
    values = values.clamp_min(0)
    root = torch.linalg.solve_triangular(cholesky_K.T, vectors * values.sqrt(), upper=True)
    return values, torch.linalg.qr(root.T).R.T


def log_evidence(
    K: Float[Tensor, "n n"],
    rho2: Float[Tensor, " p"],
    noise: Float[Tensor, "n p"],
    y: Float[Tensor, "n p"],
) -> Float[Tensor, ""]:
    """Return Σ_p log N(y_p | 0, ρ²K + Σ), with gradients in K, ρ² and Σ that come out of the forward pass.

    Σ is diagonal, the noise of every row and output. With one noise per output this is the number of
    `Evidence.bound`, several times faster to differentiate: with C = ρ²K + Σ and α = C⁻¹y the gradient
    in C is ½(ααᵀ - C⁻¹), and no derivative of a Cholesky factor is needed.
    """
    return _LogEvidence.apply(K, rho2, noise, y)


class _LogEvidence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, K: Tensor, rho2: Tensor, noise: Tensor, y: Tensor) -> Tensor:
        value = K.new_zeros(())
        grad_K, grad_rho2, grad_noise = (torch.zeros_like(part) for part in (K, rho2, noise))
        for p in range(y.shape[1]):
            C = rho2[p] * K
            C.diagonal().add_(noise[:, p])
            factor = torch.linalg.cholesky(C)
            alpha = torch.cholesky_solve(y[:, [p]], factor)
            log_det = factor.diagonal().log().sum()
            value -= 0.5 * (y[:, p] @ alpha[:, 0]) + log_det + 0.5 * len(y) * math.log(2 * math.pi)
            if any(ctx.needs_input_grad):
                grad_C = torch.addmm(
                    torch.cholesky_inverse(factor), alpha, alpha.T, beta=-0.5, alpha=0.5
                )
                grad_K += rho2[p] * grad_C
                grad_rho2[p] = (grad_C * K).sum()
                grad_noise[:, p] = grad_C.diagonal()
        ctx.save_for_backward(grad_K, grad_rho2, grad_noise)
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return (*(grads[0] * part for part in ctx.saved_tensors), None)
