"""Online learning, the paper's algorithm 1: initialise, then per minibatch add functions and update."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from gpytorch.kernels import (
    Kernel,
    MaternKernel,
    PiecewisePolynomialKernel,
    RBFKernel,
    RQKernel,
)
from gpytorch.likelihoods import GaussianLikelihood, Likelihood
from jaxtyping import Bool, Float, Int
from torch import Tensor

from decoupledgp.kernels import median_distance, median_distances
from decoupledgp.learners import GradientLearner, StepResult
from decoupledgp.likelihoods import SMALLEST_NOISE

__all__ = ["OnlineLearner", "initialise_hyperparameters"]

DISTANCE_KERNELS = (RBFKernel, MaternKernel, RQKernel, PiecewisePolynomialKernel)
"""Kernels whose length-scale is a distance between inputs, so that the median trick applies."""


class OnlineLearner:
    """Feeds minibatches to a learner while the two bases fill up; keeps no rows.

    Each minibatch lends `basis_increment` random rows to both bases, as functions with zero
    coefficients, until they hold `n_mean_basis` and `n_cov_basis` functions.
    """

    def __init__(
        self,
        learner: GradientLearner,
        *,
        n_mean_basis: int,
        n_cov_basis: int,
        basis_increment: int,
        rng: np.random.Generator,
        lengthscale_per_feature: bool = False,
    ):
        self.learner = learner
        self.n_mean_basis, self.n_cov_basis = n_mean_basis, n_cov_basis
        self.basis_increment, self.rng = basis_increment, rng
        self.lengthscale_per_feature = lengthscale_per_feature
        self.iteration = 0

    def observe(
        self,
        x: Float[Tensor, "n d"],
        y: Float[Tensor, "n p"],
        *,
        n_total: int,
        candidates: Bool[np.ndarray, " n"] | None = None,
    ) -> tuple[StepResult, Int[np.ndarray, " k"]]:
        """Take one iteration on a minibatch; return its result and the rows lent to the bases.

        `n_total` is N, the number of rows seen so far, these included. `candidates` says which of
        these may be lent; by default all.
        """
        posterior, likelihood = self.learner.posterior, self.learner.likelihood
        self.iteration += 1
        if self.iteration == 1:
            initialise_hyperparameters(
                posterior.kernel,
                likelihood,
                x,
                y,
                lengthscale_per_feature=self.lengthscale_per_feature,
            )
        lent = self._lend(np.arange(len(x)) if candidates is None else np.flatnonzero(candidates))
        if len(lent):
            rows = x[torch.from_numpy(lent).to(x.device)]
            posterior.add(rows[: self._room_mean], rows[: self._room_cov])
            self.learner.grow()
        result = self.learner.step(x, y, n_total=n_total, iteration=self.iteration, rng=self.rng)
        return result, lent

    @property
    def _room_mean(self) -> int:
        return self.n_mean_basis - self.learner.posterior.n_mean

    @property
    def _room_cov(self) -> int:
        return self.n_cov_basis - self.learner.posterior.n_cov

    def _lend(self, candidates: np.ndarray) -> np.ndarray:
        """Choose rows for new functions: both bases get the same ones (appendix A.2)."""
        count = min(self.basis_increment, max(self._room_mean, self._room_cov), len(candidates))
        return self.rng.choice(candidates, count, replace=False) if count > 0 else candidates[:0]


@torch.no_grad()
def initialise_hyperparameters(
    kernel: Kernel,
    likelihood: Likelihood | None,
    x: Float[Tensor, "n d"],
    y: Float[Tensor, "n p"],
    *,
    lengthscale_per_feature: bool = False,
) -> None:
    """Set length-scales by the median trick and the noise to the targets' variance (appendix C.2).

    "s_d is initialized as the median of pairwise distances of the sampled observations": between rows, or,
    with `lengthscale_per_feature` and a kernel that has one for each, in feature d alone.
    Only values that still are GPyTorch's untouched defaults are set (a raw parameter of zero that is to
    be learnt): a kernel or likelihood that a user has given values, or frozen, keeps them.
    """
    for part in _parts(kernel):
        if isinstance(part, DISTANCE_KERNELS) and _untouched(part.raw_lengthscale):
            columns = x if part.active_dims is None else x[:, part.active_dims]
            each = lengthscale_per_feature and part.ard_num_dims is not None
            part.lengthscale = median_distances(columns) if each else median_distance(columns)
    if isinstance(likelihood, GaussianLikelihood) and _untouched(likelihood.raw_noise):
        variance = y.var(0, correction=0).clamp_min(2 * SMALLEST_NOISE)
        noise = likelihood.noise
        likelihood.noise = variance[:, None] if noise.numel() == y.shape[1] else variance.mean()


def _untouched(raw: Tensor) -> bool:
    return raw.requires_grad and not raw.any()


def _parts(kernel: Kernel) -> Iterator[Kernel]:
    return (part for part in kernel.modules() if isinstance(part, Kernel))
