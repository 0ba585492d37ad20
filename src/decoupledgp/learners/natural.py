"""Stochastic natural gradient for a shared basis (SVI, Hensman et al. 2013), Adam for the rest.

With residual functions in the mean (hybrid, orthogonal) these are part of the rest.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from gpytorch.likelihoods import Likelihood
from jaxtyping import Float
from torch import Tensor

from decoupledgp.learners.gradient import (
    GradientLearner,
    StepResult,
    finite_bound,
    nmse,
    paper_schedule,
)
from decoupledgp.likelihoods import expected_log_prob
from decoupledgp.ops import RowGram
from decoupledgp.posteriors import ResidualMeasure, SharedMeasure, SharedPosterior

__all__ = ["NaturalLearner", "Seen", "natural_targets"]


class Seen(NamedTuple):
    """The bound's estimate from a minibatch; q's mean there, E log p's slopes, and the whitened rows."""

    bound: Float[Tensor, ""]
    mean: Float[Tensor, "n p"]
    own: Float[Tensor, "n p"]
    """ρUᵀE[v], the part of the mean that is by the values at the shared functions."""
    mean_slope: Float[Tensor, "n p"]
    variance_slope: Float[Tensor, "n p"]
    rows: RowGram


class NaturalLearner(GradientLearner):
    """Moves Λ and h by natural gradients; basis, kernel and likelihood by Adam.

    A `natural_rate` of None is Adam's step γ_t.

    The cost of a step is O(P M² (n + M) + D M (n + M)), and for M_r residual functions
    O(D M_r (n + M + |S|)) more.
    """

    posterior: SharedPosterior

    def __init__(
        self,
        posterior: SharedPosterior,
        likelihood: Likelihood,
        *,
        learning_rate: float,
        natural_rate: float | None,
        kl_batch_size: int = 1024,
    ):
        super().__init__(
            posterior, likelihood, learning_rate=learning_rate, kl_batch_size=kl_batch_size
        )
        self.natural_rate = natural_rate

    def rate(self, iteration: int) -> float:
        """Return the step of the natural gradient: constant, or γ_t."""
        if self.natural_rate is None:
            return paper_schedule(iteration, self.learning_rate)
        return self.natural_rate

    def step(
        self,
        x: Float[Tensor, "n d"],
        y: Float[Tensor, "n p"],
        *,
        n_total: int,
        iteration: int,
        rng: np.random.Generator,
    ) -> StepResult:
        """Climb once, with both gradients taken at the same point."""
        q = self.posterior.measure()
        seen = self.look(q, x, y, n_total, rng)
        targets = natural_targets(q, seen, n_total / len(x))
        self.ascend(seen.bound, iteration)
        self.posterior.mix(self.rate(iteration), *targets, q)
        return StepResult(seen.bound.item(), nmse(seen.mean, y))

    def look(
        self, q: SharedMeasure, x: Tensor, y: Tensor, n_total: int, rng: np.random.Generator
    ) -> Seen:
        """Return the bound's estimate, differentiable, and what a natural gradient needs."""
        columns = self._columns(q, rng) if isinstance(q, ResidualMeasure) else None
        mean, variance, kl, own, rows = q.observe(x, columns)
        likely = expected_log_prob(self.likelihood, mean, variance, y).sum()
        bound = finite_bound(n_total / len(x) * likely - kl, self.likelihood)
        by_mean, by_variance = torch.autograd.grad(likely, [mean, variance], retain_graph=True)
        return Seen(bound, mean.detach(), own, by_mean, by_variance, rows)


@torch.no_grad()
def natural_targets(
    q: SharedMeasure, seen: Seen, scale: float
) -> tuple[Float[Tensor, "m p"], Float[Tensor, "p m m"]]:
    """Return the (h, Λ) that a natural-gradient step of size 1 would go to.

    Each row acts as a Gaussian observation of f(x_n) with precision -2 ∂E log p / ∂variance, which
    is σ⁻² for Gaussian noise. Where a likelihood is not log-concave that can be negative; zero is
    taken then, so that Λ stays positive semi-definite.
    """
    U, rho = seen.rows.U, q.rho.double()
    weight = (-2 * seen.variance_slope).clamp_min(0)
    shift = scale * rho * (U @ (seen.mean_slope + weight * seen.own)) + q.coupling
    return shift, scale * rho.square()[:, None, None] * seen.rows(weight)
