"""GPyTorch likelihoods on the marginals of a decoupled posterior.

Means, variances and targets are (n, P), a column per output; GPyTorch wants outputs as a batch in
front. These functions are the only place that turns one into the other.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import (
    GaussianLikelihood,
    LaplaceLikelihood,
    Likelihood,
    StudentTLikelihood,
)
from gpytorch.likelihoods.likelihood import _OneDimensionalLikelihood
from gpytorch.settings import min_variance
from jaxtyping import Float
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from decoupledgp.kernels import log_positive

__all__ = [
    "check_likelihood",
    "check_targets",
    "expected_log_prob",
    "gaussian_likelihood",
    "is_location_scale",
    "log_marginal",
    "predictive_moments",
]

NODES = 20
"""Of quadratures over f."""

SMALLEST_NOISE = 1e-6
"""Lower bound of the noise variance relative to the targets': a thousandth in standard deviation."""


def gaussian_likelihood(n_outputs: int) -> GaussianLikelihood:
    """Return Gaussian noise with one learnt variance per output."""
    return GaussianLikelihood(
        batch_shape=torch.Size([n_outputs]), noise_constraint=log_positive(SMALLEST_NOISE)
    )


def check_likelihood(likelihood: Likelihood, n_outputs: int) -> None:
    """Raise a ValueError if a user's likelihood is of another number of functions or outputs."""
    if hasattr(likelihood, "num_tasks") or hasattr(likelihood, "num_classes"):
        raise ValueError(
            f"likelihood: {type(likelihood).__name__} is of several latent functions; give one of one "
            "function, which each output then has"
        )
    for name, value in likelihood.named_parameters():
        own = name.split(".")[-1] in ("raw_noise", "raw_scale", "raw_deg_free")
        if own and value.dim() > 1 and value.shape[0] not in (1, n_outputs):
            raise ValueError(
                f"likelihood: {type(likelihood).__name__} has a batch_shape of {value.shape[0]} for "
                f"{n_outputs} outputs; leave it out, or make it ({n_outputs},)"
            )


@torch.no_grad()
def check_targets(likelihood: Likelihood, y: Float[Tensor, "n p"]) -> None:
    """Raise a ValueError that names the first row whose target the likelihood has no density for."""
    conditional = likelihood(torch.zeros_like(y.T))
    possible = torch.ones_like(y, dtype=torch.bool)
    if getattr(conditional, "support", None) is not None:
        possible = conditional.support.check(y.T).T
    if possible.any():
        inside = torch.where(possible, y, y[possible][0])
        density = expected_log_prob(likelihood, torch.zeros_like(y), torch.ones_like(y), inside)
        possible = possible & density.isfinite()
    if not possible.all():
        row, column = (int(i) for i in (~possible).nonzero()[0])
        raise ValueError(
            f"y has values that {type(likelihood).__name__} does not allow: "
            f"{float(y[row, column]):g} at row {row}"
        )


def is_location_scale(likelihood: Likelihood) -> bool:
    """Whether y is f plus noise, so that y may be shifted and scaled before learning."""
    return isinstance(likelihood, GaussianLikelihood | StudentTLikelihood | LaplaceLikelihood)


def expected_log_prob(
    likelihood: Likelihood,
    mean: Float[Tensor, "n p"],
    variance: Float[Tensor, "n p"],
    y: Float[Tensor, "n p"],
) -> Float[Tensor, "n p"]:
    """Return E_q[log p(y | f)] per row and output: closed form for Gaussian noise, else quadrature."""
    latent = MultivariateNormal(mean.T, DiagLinearOperator(variance.T.to(mean)))
    with min_variance(0.0, 0.0, 0.0):  # they are not negative, and small ones are meant
        return likelihood.expected_log_prob(y.T, latent).T


def log_marginal(
    likelihood: Likelihood,
    mean: Float[Tensor, "n p"],
    variance: Float[Tensor, "n p"],
    y: Float[Tensor, "n p"],
) -> Float[Tensor, "n p"]:
    """Return log ∫p(y | f) q(f) df per row and output: closed form where there is one, else quadrature.

    GPyTorch's own quadrature is of p, which is zero in floating point for an outlier; this one is of log p.
    """
    if type(likelihood).log_marginal is not _OneDimensionalLikelihood.log_marginal:
        latent = MultivariateNormal(mean.T, DiagLinearOperator(variance.T.to(mean)))
        with min_variance(0.0, 0.0, 0.0):
            return likelihood.log_marginal(y.T, latent).T
    node, weight = _hermite(mean)
    log_prob = likelihood(mean.T + node * variance.T.sqrt()).log_prob(y.T)
    return torch.logsumexp(weight.log() + log_prob, 0).T


@torch.no_grad()
def predictive_moments(
    likelihood: Likelihood, mean: Float[Tensor, "n p"], variance: Float[Tensor, "n p"]
) -> tuple[Float[Tensor, "n p"], Float[Tensor, "n p"]]:
    """Return mean and variance of y, noise included, with f integrated out.

    Exact for Gaussian noise; otherwise the moments of p(y | f) at Gauss-Hermite nodes of q(f).
    """
    if isinstance(likelihood, GaussianLikelihood):
        return mean, variance + likelihood.noise.detach().to(mean).T
    node, weight = _hermite(mean)
    conditional = likelihood(mean.T + node * variance.T.sqrt())
    y_mean = (weight * conditional.mean).sum(0)
    second = (weight * (conditional.variance + (conditional.mean - y_mean).square())).sum(0)
    return y_mean.T, second.T


def _hermite(like: Tensor) -> tuple[Float[Tensor, "k 1 1"], Float[Tensor, "k 1 1"]]:
    """Return the nodes of Gauss-Hermite quadrature for a standard normal variable, and their weights."""
    nodes, weights = np.polynomial.hermite.hermgauss(NODES)
    shape = (-1, 1, 1)
    weight = torch.as_tensor(weights / math.sqrt(math.pi)).to(like).reshape(shape)
    return torch.as_tensor(nodes * math.sqrt(2)).to(like).reshape(shape), weight
