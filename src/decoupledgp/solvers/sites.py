"""Any likelihood as Gaussian noise around the present posterior: Newton's method on the bound.

Where f_n has the mean m and variance v, the bound's expected log-likelihood ℓ(m, v) is to second order
that of a Gaussian observation t of variance 1/h,

    h = -2 ∂ℓ/∂v = -E[∂² log p/∂f²],   t = m + (∂ℓ/∂m)/h,

and the posterior for these sites is one natural-gradient step of length one on the bound (Opper &
Archambeau 2009; Khan & Lin 2017).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from gpytorch.likelihoods import Likelihood
from jaxtyping import Float
from torch import Tensor

from decoupledgp.learners.batch import maximise
from decoupledgp.likelihoods import expected_log_prob, log_marginal

__all__ = [
    "Marginals",
    "Sites",
    "best_constant",
    "calibrate_latent",
    "fit_likelihood",
    "sites_at",
]

DOUBTFUL, FLATTEST, LONGEST = 0.1, 1e-3, 5.0
"""Curvature below the first share of the typical precision may be zero or negative where slopes are not
(outliers, kinks). A site there is no flatter than the second share, nor further from the mean than so
many typical deviations."""

MISFIT = 0.01
"""The typical precision is at least this share of the mean squared slope."""

FIT_ITERATIONS = 20
"""L-BFGS iterations for the likelihood's parameters."""

LOG_FACTORS = (math.log(1e-4), math.log(10))
"""Between these the calibration chooses a factor of the latent variance."""

FACTOR_PRIOR = math.log(3)
"""Standard deviation of its logarithm beforehand: a few labels say little about it."""

TINY = 1e-12

SMALLEST_VARIANCE = 1e-9
"""Of f, where derivatives are taken: they do not exist at zero."""


class Sites(NamedTuple):
    """Gaussian observations in place of the likelihood."""

    targets: Float[Tensor, "n p"]
    variances: Float[Tensor, "n p"]

    def take(self, index: slice) -> Sites:
        """Return some of the sites."""
        return Sites(self.targets[index], self.variances[index])

    def towards(self, other: Sites, share: float) -> Sites:
        """Return the sites between, in natural parameters: a shorter step."""
        own, its = (1 - share) / self.variances, share / other.variances
        precision = own + its
        return Sites((own * self.targets + its * other.targets) / precision, 1 / precision)


def sites_at(
    likelihood: Likelihood,
    mean: Float[Tensor, "n p"],
    variance: Float[Tensor, "n p"],
    y: Float[Tensor, "n p"],
) -> Sites:
    """Return the sites for these marginals of f. Time O(n P), 20 nodes each."""
    with torch.enable_grad():
        m = mean.detach().clone().requires_grad_()
        v = variance.detach().clamp_min(SMALLEST_VARIANCE).requires_grad_()
        value = expected_log_prob(likelihood, m, v, y).sum()
        slope, slope_v = torch.autograd.grad(value, (m, v))
    h = -2 * slope_v
    squared = slope.square().mean(0)  # which is E[h] too where the model is right
    typical = torch.maximum(h.clamp_min(0).mean(0), MISFIT * squared) + TINY
    limited = torch.maximum(FLATTEST * typical, slope.abs() * typical.sqrt() / LONGEST)
    h = torch.where(h > DOUBTFUL * typical, h, torch.maximum(h, limited))
    return Sites(mean + slope / h, 1 / h)


def best_constant(
    likelihood: Likelihood, y: Float[Tensor, "n p"], weights: Float[Tensor, " n"]
) -> Float[Tensor, " p"]:
    """Return the mean of f, the same everywhere, under which the targets are most likely."""
    constant = torch.nn.Parameter(y.new_zeros(y.shape[1]))
    one = torch.ones_like(y)

    def objective() -> Tensor:
        return (weights[:, None] * expected_log_prob(likelihood, constant * one, one, y)).mean()

    _climb(objective, [constant])
    return constant.detach()


class Marginals(NamedTuple):
    """Means and variances of f at rows, with the rows' targets and weights."""

    mean: Float[Tensor, "n p"]
    variance: Float[Tensor, "n p"]
    y: Float[Tensor, "n p"]
    weights: Float[Tensor, " n"]

    def followed_by(self, other: Marginals, most: int) -> Marginals:
        """Return the latest rows of both."""
        return Marginals(*(torch.cat(pair)[-most:] for pair in zip(self, other, strict=True)))


def fit_likelihood(likelihood: Likelihood, rows: Marginals) -> None:
    """Set the likelihood's free parameters to those of the greatest bound on rows that were learnt from."""
    free = [p for p in likelihood.parameters() if p.requires_grad]
    variance = rows.variance.clamp_min(SMALLEST_VARIANCE)

    def objective() -> Tensor:
        fit = expected_log_prob(likelihood, rows.mean, variance, rows.y)
        return (rows.weights[:, None] * fit).mean()

    _climb(objective, free)


def calibrate_latent(
    likelihood: Likelihood, rows: Marginals, *, likelihood_too: bool
) -> Float[Tensor, " p"]:
    """Return factors on the variance of f that make held-out targets most likely, one per output.

    They maximise Σ log ∫p(y | f) q(f) df, over the likelihood's free parameters too if asked for.
    """
    free = [p for p in likelihood.parameters() if p.requires_grad] if likelihood_too else []
    log_factor = torch.nn.Parameter(rows.mean.new_zeros(rows.mean.shape[1]))
    variance = rows.variance.clamp_min(SMALLEST_VARIANCE)

    def objective() -> Tensor:
        fit = log_marginal(likelihood, rows.mean, _factor(log_factor) * variance, rows.y)
        prior = 0.5 * (log_factor / FACTOR_PRIOR).square().sum() / rows.y.numel()
        return (rows.weights[:, None] * fit).mean() - prior

    _climb(objective, [*free, log_factor])
    return _factor(log_factor).detach()


def _climb(objective: Callable[[], Tensor], parameters: list[torch.nn.Parameter]) -> None:
    with torch.enable_grad():
        maximise(
            objective,
            parameters,
            solver="lbfgs",
            max_iter=FIT_ITERATIONS,
            after_step=lambda: False,
        )


def _factor(log_factor: Tensor) -> Tensor:
    return log_factor.clamp(*LOG_FACTORS).exp()
