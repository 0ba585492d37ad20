"""Groups of neighbouring rows at several densities, and the evidence of all of them together."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from gpytorch.kernels import ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from jaxtyping import Float, Int
from torch import Tensor, nn

from decoupledgp.bases import PointBasis
from decoupledgp.collapsed import log_evidence
from decoupledgp.kernels import is_radial
from decoupledgp.ops.threads import run_all
from decoupledgp.solvers.breadth import Breadth
from decoupledgp.solvers.rows import Rows

__all__ = ["GROUP", "GroupEvidence", "Prior", "coordinates", "neighbourhoods", "surroundings"]

GROUP = 256
"""Rows in a neighbourhood."""

WHOLE = 1024
"""Up to so many rows are one neighbourhood."""

PULL = 1e-4
"""Weight of the squared distance of log-parameters from their start, per row: it holds the
length-scale of an input that does not matter."""

LEAST_PULL = 0.3
"""The same weight in all, at least: few rows are easily overfitted with many length-scales."""

FLAT_TRIES = 5
"""How often a group is drawn, at most, until its targets are not nearly all the same number."""

CENTRES_AT_ONCE = 8
"""Rows whose distances to all others are held at once."""

BREADTH = 0.01
"""Weight per row of the penalty on functions wider than the targets."""


class Prior(NamedTuple):
    """Kernel and noise, with their parameters; without a likelihood all noise is the rows' known one."""

    kernel: ScaleKernel
    likelihood: GaussianLikelihood | None

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All parameters, those that are fixed too."""
        modules = [self.kernel] if self.likelihood is None else [self.kernel, self.likelihood]
        return [p for module in modules for p in module.parameters()]

    @property
    def free(self) -> list[nn.Parameter]:
        """The parameters to learn."""
        return [p for p in self.parameters if p.requires_grad]

    def values(self) -> list[Tensor]:
        """Return a copy of all parameters."""
        return [p.detach().clone() for p in self.parameters]

    @torch.no_grad()
    def set(self, values: list[Tensor]) -> None:
        """Set all parameters."""
        for p, value in zip(self.parameters, values, strict=True):
            p.copy_(value)

    def noise(self, rows: Rows) -> Float[Tensor, "n p"]:
        """Return the variance of every row's noise."""
        n_outputs = rows.y.shape[1]
        if self.likelihood is None:
            return rows.noise(rows.y.new_zeros(n_outputs))
        return rows.noise(self.likelihood.noise.reshape(-1).expand(n_outputs))


def coordinates(kernel: ScaleKernel, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Return rows in units in which the kernel is near one where they are near each other."""
    base = kernel.base_kernel
    return x / base.lengthscale.detach().to(x) if is_radial(base) else x


def neighbourhoods(
    places: Float[Tensor, "n d"],
    rng: np.random.Generator,
    *,
    size: int = GROUP,
    count: int,
    apart: bool = False,
    y: Float[Tensor, "n p"] | None = None,
) -> list[Int[np.ndarray, " k"]]:
    """Return groups of neighbouring rows, thinned by 1, 4, 16, … in turn; all rows if they are few.

    With `apart` all are thinned until they are random rows. Given the targets y, groups are avoided in
    which one value of an output is far more common than in all rows, as where a sensor is at its limit:
    such groups say that there is no noise, and in many dimensions no other group contradicts them.
    """
    n = len(places)
    if n <= WHOLE:
        return [np.arange(n)]
    levels = int(np.ceil(np.log(n / size) / np.log(4))) + 1
    tolerated = None if y is None else (1 + _commonest(y)) / 2
    groups = []
    for number in range(count):
        level = levels if apart else number % levels
        thinned = max(size, n // 4**level)
        for _ in range(FLAT_TRIES):
            pool = rng.permutation(n)[:thinned]
            some = places[torch.from_numpy(pool)]
            distance = (some - some[0]).square().sum(1)
            group = pool[torch.topk(distance, size, largest=False).indices.numpy()]
            if y is None or (_commonest(y[torch.from_numpy(group)]) <= tolerated).all():
                break
        groups.append(group)
    return groups


def surroundings(
    places: Float[Tensor, "n d"], rng: np.random.Generator, *, size: int = GROUP, count: int
) -> list[Int[np.ndarray, " k"]]:
    """Return random rows each with its nearest ones among all, nearest first; all rows if they are few.

    Time O(n d) for each, memory O(n).
    """
    n = len(places)
    if n <= WHOLE:
        return [np.arange(n)]
    squares = places.square().sum(1)
    groups: list[np.ndarray] = []
    for some in np.array_split(rng.choice(n, count, replace=False), -(-count // CENTRES_AT_ONCE)):
        centres = torch.from_numpy(some)
        distance = torch.addmm(squares, places[centres], places.T, alpha=-2)
        distance[torch.arange(len(some)), centres] = -torch.inf  # first, whatever the rounding
        groups += list(torch.topk(distance, size, largest=False).indices.numpy())
    return groups


def _commonest(y: Float[Tensor, "n p"]) -> Float[np.ndarray, " p"]:
    """Return the share of the rows that have an output's most common value, for every output."""
    counts = [int(torch.unique(column, return_counts=True)[1].max()) for column in y.T]
    return np.array(counts) / len(y)


class GroupEvidence:
    """Log evidence of all groups per row and output, less a pull towards the start and one on breadth."""

    def __init__(
        self, prior: Prior, rows: Rows, groups: list[np.ndarray], parameters: list[nn.Parameter]
    ):
        self.prior, self.parameters = prior, parameters
        self.groups = [rows.take(group) for group in groups]
        self.start = [p.detach().clone() for p in parameters]
        self.size = sum(len(g) for g in groups) * rows.y.shape[1]
        self.pull = max(PULL, LEAST_PULL / self.size)
        self.breadth = Breadth(rows)

    def __call__(self) -> Tensor:
        """Return the value, differentiable in the parameters: groups in parallel, each with its gradient."""
        jobs = [partial(self._group, group) for group in self.groups]
        base = self.prior.kernel.base_kernel
        results = run_all(jobs, self.groups[0].x.device, in_turn=not is_radial(base))
        value = torch.stack([result[0] for result in results]).sum() / self.size
        for k, (p, start) in enumerate(zip(self.parameters, self.start, strict=True)):
            slope = torch.stack([result[1][k] for result in results]).sum(0) / self.size
            value = (
                value + ((p - p.detach()) * slope).sum() - self.pull * (p - start).square().sum()
            )
        with torch.set_grad_enabled(bool(self.parameters)):
            return value - BREADTH * self.breadth(self.prior.kernel)

    def _group(self, rows: Rows) -> tuple[Tensor, list[Tensor]]:
        """Return the log evidence of a group and its gradients."""
        kernel = self.prior.kernel
        with torch.set_grad_enabled(bool(self.parameters)):
            K = PointBasis(rows.x).at(kernel.base_kernel).gram()
            value = log_evidence(K, kernel.outputscale, self.prior.noise(rows), rows.y)
            if not self.parameters:
                return value, []
            found = torch.autograd.grad(value, self.parameters, allow_unused=True)
        pairs = zip(self.parameters, found, strict=True)
        return value.detach(), [torch.zeros_like(p) if g is None else g for p, g in pairs]
