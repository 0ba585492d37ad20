"""The variational bound: expected log-likelihood minus KL, scaled from some rows to all (equation 6)."""

from __future__ import annotations

import torch
from gpytorch.likelihoods import Likelihood
from jaxtyping import Float, Int
from torch import Tensor

from decoupledgp.likelihoods import expected_log_prob
from decoupledgp.posteriors import DecoupledMeasure, kl_divergence

__all__ = ["elbo"]

ROWS_AT_ONCE = 4096
"""Rows whose covariance functions are evaluated at once where no gradient is asked for."""


def elbo(
    q: DecoupledMeasure,
    likelihood: Likelihood,
    x: Float[Tensor, "n d"],
    y: Float[Tensor, "n p"],
    *,
    n_total: int | None = None,
    prior: DecoupledMeasure | None = None,
    columns: Int[Tensor, " s"] | None = None,
    mean: Float[Tensor, "n p"] | None = None,
) -> Float[Tensor, ""]:
    """Return (N/n) Σ_n E_q[log p(y_n | f(x_n))] - KL[q ‖ prior], summed over outputs.

    With a minibatch of all N = `n_total` rows, or with sampled `columns`, this is an unbiased
    estimate of the bound; with test rows and N the number of training rows it is the held-out bound
    that the paper reports. `mean` spares computing q's mean at x if it is known already.
    """
    if mean is None and not torch.is_grad_enabled():  # nothing has to be kept: rows in parts
        parts = zip(x.split(ROWS_AT_ONCE), y.split(ROWS_AT_ONCE), strict=True)
        likely = sum((_likely(q, likelihood, *part) for part in parts), x.new_zeros(()))
    else:
        likely = _likely(q, likelihood, x, y, mean)
    scale = 1.0 if n_total is None else n_total / len(x)
    return scale * likely - kl_divergence(q, prior, columns)


def _likely(
    q: DecoupledMeasure, likelihood: Likelihood, x: Tensor, y: Tensor, mean: Tensor | None = None
) -> Float[Tensor, ""]:
    mean = q.mean(x) if mean is None else mean
    return expected_log_prob(likelihood, mean, q.variance(x), y).sum(dtype=torch.float64)
