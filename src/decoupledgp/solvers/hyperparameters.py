"""Kernel and noise from the evidence of neighbourhoods at every density.

The evidence of random rows sees only structure that is longer than the distance between them. Here
the rows are thinned to N, N/4, N/16, … and groups of neighbours are taken at each density: the dense
ones tell about short structure and noise, the thin ones about long structure. The sum of their log
evidences, each an exact GP of one group, is climbed by L-BFGS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from jaxtyping import Float, Int
from torch import Tensor, nn

from decoupledgp.bases import PointBasis
from decoupledgp.collapsed import Evidence
from decoupledgp.kernels import is_se_ard
from decoupledgp.learners.batch import maximise
from decoupledgp.online import initialise_hyperparameters

__all__ = ["coordinates", "learn_hyperparameters", "neighbourhoods"]

GROUP = 256
"""Rows in a neighbourhood."""

GROUPS = 48
"""Neighbourhoods in all."""

ROUNDS = (12, 25)
"""L-BFGS iterations with neighbours by the first length-scales, and with neighbours by those learnt."""

STARTS = (1.0, 0.3, 0.1)
"""Shares of the median distance that are tried as first length-scales."""

FIRST_NOISE = 0.1
"""First noise variance, as a share of the targets' variance."""

PULL = 1e-4
"""Weight of the squared distance of log-parameters from their start, per row: it holds the
length-scale of an input that does not matter."""


def learn_hyperparameters(
    kernel: ScaleKernel,
    likelihood: GaussianLikelihood,
    x: Float[Tensor, "n d"],
    y: Float[Tensor, "n p"],
    *,
    rng: np.random.Generator,
    again: bool = False,
    out_of_time: Callable[[], bool] = lambda: False,
) -> None:
    """Set kernel and noise from rows; `again` goes on from the values they have.

    Parameters that do not require gradients stay. Time O(GROUPS · GROUP³ P) per iteration.
    """
    if not again:
        _start(kernel, likelihood, x, y, rng)
    modules = (kernel, likelihood)
    parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
    for iterations in ROUNDS[1:] if again else ROUNDS:
        groups = neighbourhoods(coordinates(kernel, x), rng)
        objective = _Objective(kernel, likelihood, x, y, groups, parameters)
        maximise(
            objective,
            parameters,
            solver="lbfgs",
            max_iter=iterations,
            after_step=out_of_time,
        )


def coordinates(kernel: ScaleKernel, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Return rows in units in which the kernel is near one where they are near each other."""
    base = kernel.base_kernel
    return x / base.lengthscale.detach().to(x) if is_se_ard(base) else x


def neighbourhoods(
    places: Float[Tensor, "n d"], rng: np.random.Generator, size: int = GROUP, count: int = GROUPS
) -> list[Int[np.ndarray, " k"]]:
    """Return groups of neighbouring rows, thinned by 1, 4, 16, … in turn; all rows if they are few."""
    n = len(places)
    if n <= 4 * size:
        return [np.arange(n)]
    levels = int(np.ceil(np.log(n / size) / np.log(4))) + 1
    groups = []
    for number in range(count):
        thinned = max(size, n // 4 ** (number % levels))
        pool = rng.permutation(n)[:thinned]
        some = places[torch.from_numpy(pool)]
        distance = (some - some[0]).square().sum(1)
        groups.append(pool[torch.topk(distance, size, largest=False).indices.numpy()])
    return groups


class _Objective:
    """Log evidence of all groups per row and output, less a pull towards the start."""

    def __init__(
        self,
        kernel: ScaleKernel,
        likelihood: GaussianLikelihood,
        x: Tensor,
        y: Tensor,
        groups: list[np.ndarray],
        parameters: list[nn.Parameter],
    ):
        self.kernel, self.likelihood, self.parameters = kernel, likelihood, parameters
        self.groups = [(x[torch.from_numpy(g)], y[torch.from_numpy(g)]) for g in groups]
        self.start = [p.detach().clone() for p in parameters]
        self.size = sum(len(g) for g in groups) * y.shape[1]

    def __call__(self) -> Tensor:
        pull = sum(
            (p - start).square().sum() for p, start in zip(self.parameters, self.start, strict=True)
        )
        total: Any = 0.0
        noise = self.likelihood.noise.reshape(-1)
        for x, y in self.groups:
            functions = PointBasis(x).at(self.kernel.base_kernel)
            noises = noise.expand(y.shape[1])
            total = total + Evidence(functions, self.kernel.outputscale, noises, y).bound()
        return total / self.size - PULL * pull


def _start(
    kernel: ScaleKernel,
    likelihood: GaussianLikelihood,
    x: Tensor,
    y: Tensor,
    rng: np.random.Generator,
) -> None:
    """Median trick and a tenth of the variance as noise; shorter length-scales where they fit better.

    From "all is noise" and long length-scales no gradient leads to a function that changes fast.
    """
    given = bool(likelihood.raw_noise.any())
    base = kernel.base_kernel
    fixed = not is_se_ard(base) or bool(base.raw_lengthscale.any())
    fixed = fixed or not base.raw_lengthscale.requires_grad
    initialise_hyperparameters(kernel, likelihood, x, y)
    with torch.no_grad():
        if not given and likelihood.raw_noise.requires_grad:
            likelihood.noise = FIRST_NOISE * likelihood.noise
    if fixed:
        return
    median = base.lengthscale.detach().clone()
    groups = neighbourhoods(coordinates(kernel, x), rng)
    values = []
    with torch.no_grad():
        for share in STARTS:
            base.lengthscale = share * median
            values.append(float(_Objective(kernel, likelihood, x, y, groups, [])()))
        base.lengthscale = STARTS[int(np.argmax(values))] * median
