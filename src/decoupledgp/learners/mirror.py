"""Stochastic mirror ascent on Gaussian measures, then projection (iVSGPR, Cheng & Boots 2016).

A step of size γ goes to log q̂ = (1-γ) log q + γ [log p(f) + (N/n) Σ log p(y_i | f(x_i))], a measure on
the basis β̄ = [β, X] of the old functions and the minibatch: its precision is I + Ψ_β̄B̄Ψ_β̄ᵀ and its
precision times mean Ψ_β̄c̄. Then q is projected back: the basis climbs on -min KL[q ‖ q̂], and the
minimum itself is closed form. In the whitened coordinates of the shared family it reads Λ = C⁻¹ΔC⁻ᵀ
and h = C⁻¹K_ββ̄c̄ with Δ = K_ββ̄B̄K_β̄β; for a basis that stands still this is the natural-gradient step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from decoupledgp.bases import Basis, Functions
from decoupledgp.learners.gradient import StepResult, nmse
from decoupledgp.learners.natural import NaturalLearner, Seen
from decoupledgp.ops import safe_cholesky
from decoupledgp.posteriors import SharedMeasure

__all__ = ["MirrorLearner", "Target"]


class MirrorLearner(NaturalLearner):
    """Moves (a, B) by mirror ascent and projection, the basis on the projection's KL, the rest by Adam.

    The cost of a step is O(P M² (n + M) + D M (n + M)).
    """

    def step(
        self,
        x: Float[Tensor, "n d"],
        y: Float[Tensor, "n p"],
        *,
        n_total: int,
        iteration: int,
        rng: np.random.Generator,
    ) -> StepResult:
        """Move the measure and its basis, then kernel and likelihood."""
        q = self.posterior.measure()
        seen = self.look(q, x, y, n_total, rng)
        rest = [p for p in self.model.parameters() if p.requires_grad and not self._in_basis(p)]
        gradients = torch.autograd.grad(-seen.bound, rest, allow_unused=True) if rest else ()
        everything = torch.arange(len(self.posterior.basis), device=self.posterior.shift.device)
        old = self._functions(self.posterior.basis.take(everything))
        scale, rate = n_total / len(x), self.rate(iteration)
        target = Target.of_step(q, old, x, seen, scale, rate)
        moving = [p for p in self.posterior.basis.parameters() if p.requires_grad]
        if moving:
            closeness = target.closeness(self._functions(self.posterior.basis))
            self.climb(moving, torch.autograd.grad(-closeness, moving), iteration)
        with torch.no_grad():
            projected = target.projected(self._functions(self.posterior.basis))
        self.posterior.mix(1.0, *projected, q)
        self.climb(rest, gradients, iteration)
        return StepResult(seen.bound.item(), nmse(seen.mean, y))

    def _functions(self, basis: Basis) -> Functions:
        return basis.at(self.posterior.kernel.base_kernel).double()

    def _in_basis(self, parameter: Tensor) -> bool:
        return any(parameter is other for other in self.posterior.basis.parameters())


@dataclass
class Target:
    """q̂ by its two sets of functions: B̄ = EEᵀ on the old ones, diagonal on the rows."""

    old: Functions
    root: Float[Tensor, "p m m"]
    """E, with B̄ = EEᵀ on the old functions."""
    coefficients: Float[Tensor, "m p"]
    """c̄ on the old functions."""
    x: Float[Tensor, "n d"]
    row_root: Float[Tensor, "n p"]
    """√B̄ on the rows."""
    row_coefficients: Float[Tensor, "n p"]
    """c̄ on the rows."""

    @staticmethod
    @torch.no_grad()
    def of_step(
        q: SharedMeasure,
        old: Functions,
        x: Float[Tensor, "n d"],
        seen: Seen,
        scale: float,
        rate: float,
    ) -> Target:
        """Return the measure that a mirror step from q goes to; rows act as in `natural_targets`."""
        rho = q.rho.double()
        weight = (-2 * seen.variance_slope).clamp_min(0)
        transposed = q.cholesky_K.T
        return Target(
            old,
            (1 - rate) ** 0.5 * torch.linalg.solve_triangular(transposed, q.root, upper=True),
            (1 - rate) * torch.linalg.solve_triangular(transposed, q.shift, upper=True),
            x.double(),
            (rate * scale * weight).sqrt() * rho,
            rate * scale * rho * (seen.mean_slope + weight * seen.mean),
        )

    def projected(self, functions: Functions) -> tuple[Tensor, Tensor]:
        """Return (h, Λ) of the measure on these functions that is nearest to q̂."""
        cholesky = safe_cholesky(functions.gram())
        cross_old, cross_rows = functions.gram(self.old), functions.evaluate(self.x).T
        shift = torch.linalg.solve_triangular(
            cholesky,
            cross_old @ self.coefficients + cross_rows @ self.row_coefficients,
            upper=False,
        )
        parts = torch.cat([cross_old @ self.root, cross_rows * self.row_root.T[:, None]], 2)
        J = torch.linalg.solve_triangular(cholesky, parts, upper=False)
        return shift, J @ J.mT

    def closeness(self, functions: Functions) -> Tensor:
        """Return -min KL[q ‖ q̂] over measures on these functions, up to a constant."""
        shift, precision = self.projected(functions)
        eye = torch.eye(len(functions)).to(precision)
        cholesky = torch.linalg.cholesky(eye + precision)
        half = torch.linalg.solve_triangular(cholesky, shift.T[..., None], upper=False)
        log_det = cholesky.diagonal(dim1=1, dim2=2).log().sum()
        trace = precision.diagonal(dim1=1, dim2=2).sum()
        return 0.5 * half.square().sum() - log_det + 0.5 * trace
