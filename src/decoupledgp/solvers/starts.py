"""Where to begin climbing on the evidence: smooth under much noise, and short with little."""

from __future__ import annotations

import numpy as np
import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from decoupledgp.kernels import is_radial
from decoupledgp.likelihoods import SMALLEST_NOISE
from decoupledgp.online import initialise_hyperparameters
from decoupledgp.solvers.neighbourhoods import GroupEvidence, Prior
from decoupledgp.solvers.rows import Rows

__all__ = ["MARGIN", "starts", "tried"]

SHARES = (1.0, 0.3, 0.1, 0.03, 0.01)
"""Shares of the median distance that are tried as first length-scales, of all inputs together."""

SINGLE_SHARES = (0.3, 0.1, 0.03)
"""Shares of that which are then tried for one input after the other."""

MOST_SINGLE = 32
"""Inputs up to which they are tried one by one."""

SEARCHED = 4
"""One group of so many takes part in that search."""

MARGIN = 0.005
"""Evidence per row by which a shorter length-scale must be ahead: without structure all are alike."""

FIRST_NOISE = 0.1
"""First noise variance, as a share of the targets' variance."""


def tried(n_features: int) -> float:
    """Return how many evaluations of all groups the search takes, about; none has a gradient."""
    count = len(SHARES) + len(SINGLE_SHARES) * min(n_features, MOST_SINGLE)
    return count / SEARCHED


def starts(prior: Prior, rows: Rows, groups: list[np.ndarray]) -> tuple[list[Tensor], list[Tensor]]:
    """Return values of all parameters to climb from, the last of them set.

    The median trick and noise that explains nearly all; and, from a search over shorter
    length-scales with little noise, the greatest evidence. From the first no gradient leads to a
    function that changes fast, from the second none to a faint one under much noise.
    """
    likelihood, base = prior.likelihood, prior.kernel.base_kernel
    learns_noise = likelihood is not None and likelihood.raw_noise.requires_grad
    untouched = likelihood is not None and not likelihood.raw_noise.any()
    fixed = not is_radial(base) or not base.raw_lengthscale.requires_grad
    fixed = fixed or bool(base.raw_lengthscale.any())
    initialise_hyperparameters(prior.kernel, likelihood, rows.x, rows.y)
    smooth = prior.values()
    with torch.no_grad():
        if likelihood is not None and learns_noise and untouched:
            likelihood.noise = (FIRST_NOISE * likelihood.noise).clamp_min(2 * SMALLEST_NOISE)
    if not fixed:
        _shorten(base, GroupEvidence(prior, rows, groups[: len(groups) // SEARCHED + 1], []))
    return smooth, prior.values()


@torch.no_grad()
def _shorten(base: Kernel, evidence: GroupEvidence) -> None:
    """Set the length-scales of the greatest evidence among shares of the present ones."""
    scales = base.lengthscale.detach().clone()
    scales = _best([share * scales for share in SHARES], base, evidence)
    n_features = scales.shape[1]
    for d in range(n_features if 1 < n_features <= MOST_SINGLE else 0):
        factors = torch.ones(len(SINGLE_SHARES) + 1, 1, n_features).to(scales)
        factors[1:, 0, d] = torch.tensor(SINGLE_SHARES).to(scales)
        scales = _best([factor * scales for factor in factors], base, evidence)


def _best(scales: list[Tensor], base: Kernel, evidence: GroupEvidence) -> Tensor:
    """Set and return the length-scales of the greatest evidence; the first ones on a par."""
    values = []
    for candidate in scales:
        base.lengthscale = candidate
        values.append(float(evidence()))
    best = int(np.nanargmax(values))
    base.lengthscale = scales[0 if values[best] < values[0] + MARGIN else best]
    return base.lengthscale.detach().clone()
