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
from jaxtyping import Float
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from decoupledgp.kernels import log_positive

__all__ = ["expected_log_prob", "gaussian_likelihood", "is_location_scale", "predictive_moments"]

SMALLEST_NOISE = 1e-6
"""Lower bound of the noise variance relative to the targets': a thousandth in standard deviation."""


def gaussian_likelihood(n_outputs: int) -> GaussianLikelihood:
    """Return Gaussian noise with one learnt variance per output."""
    return GaussianLikelihood(
        batch_shape=torch.Size([n_outputs]), noise_constraint=log_positive(SMALLEST_NOISE)
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
    return likelihood.expected_log_prob(y.T, latent).T


@torch.no_grad()
def predictive_moments(
    likelihood: Likelihood, mean: Float[Tensor, "n p"], variance: Float[Tensor, "n p"]
) -> tuple[Float[Tensor, "n p"], Float[Tensor, "n p"]]:
    """Return mean and variance of y, noise included, with f integrated out.

    Exact for Gaussian noise; otherwise the moments of p(y | f) at Gauss-Hermite nodes of q(f).
    """
    if isinstance(likelihood, GaussianLikelihood):
        return mean, variance + likelihood.noise.detach().to(mean).T
    nodes, weights = np.polynomial.hermite.hermgauss(20)
    shape = (-1, 1, 1)
    weight = torch.as_tensor(weights / math.sqrt(math.pi)).to(mean).reshape(shape)
    node = torch.as_tensor(nodes * math.sqrt(2)).to(mean).reshape(shape)
    conditional = likelihood(mean.T + node * variance.T.sqrt())
    y_mean = (weight * conditional.mean).sum(0)
    second = (weight * (conditional.variance + (conditional.mean - y_mean).square())).sum(0)
    return y_mean.T, second.T
