"""Kernel and noise from the evidence of neighbourhoods at every density.

The evidence of random rows sees only structure that is longer than the distance between them. Here
the rows are thinned to N, N/4, N/16, … and groups of neighbours are taken at each density: the dense
ones tell about short structure and noise, the thin ones about long structure. The sum of their log
evidences, each an exact GP of one group, is climbed by L-BFGS.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from jaxtyping import Float, Int
from torch import Tensor, nn

from decoupledgp.bases import PointBasis
from decoupledgp.collapsed import log_evidence
from decoupledgp.kernels import is_se_ard
from decoupledgp.learners.batch import maximise
from decoupledgp.likelihoods import SMALLEST_NOISE
from decoupledgp.online import initialise_hyperparameters
from decoupledgp.ops.threads import run_all
from decoupledgp.solvers.rows import Rows
from decoupledgp.solvers.sweeps import block_solution

__all__ = ["coordinates", "learn_hyperparameters", "neighbourhoods"]

GROUP = 256
"""Rows in a neighbourhood."""

WHOLE = 1024
"""Up to so many rows are one neighbourhood."""

GROUPS = 48
"""Neighbourhoods in all, for one output; fewer for several, each of which has factors of its own."""

ROUNDS = (12, 25)
"""L-BFGS iterations with neighbours by the first length-scales, and with neighbours by those learnt."""

FEWEST_GROUPS = 4
"""Neighbourhoods however short the time is."""

EVALUATIONS = 1.3
"""Of the objective in an iteration of L-BFGS, about."""

STARTS = (1.0, 0.3, 0.1, 0.03, 0.01)
"""Shares of the median distance that are tried as first length-scales, of all inputs together."""

SINGLE_STARTS = (0.3, 0.1, 0.03)
"""Shares of that which are then tried for one input after the other."""

MOST_SINGLE = 32
"""Inputs up to which they are tried one by one."""

MARGIN = 0.005
"""Evidence per row by which a shorter length-scale must be ahead: without structure all are alike."""

NOISY_GROUP, NOISY_GROUPS_LESS = 1024, 8
"""Rows in a neighbourhood where most is noise, which fewer would not show a function through, and by how
much there are fewer of them."""

COMPARED = 6144
"""Random rows of which an exact GP learns from two thirds and predicts the others, to decide between ends
of climbs and units of the inputs."""

AHEAD = 0.95
"""Share of the error with the given units that other units must come below."""

TOLERATED = 0.01
"""Share by which that error may be larger where the evidence is greater: such rows may be too far apart."""

FIRST_NOISE = 0.1
"""First noise variance, as a share of the targets' variance."""

PULL = 1e-4
"""Weight of the squared distance of log-parameters from their start, per row: it holds the
length-scale of an input that does not matter."""


def learn_hyperparameters(
    kernel: ScaleKernel,
    likelihood: GaussianLikelihood | None,
    rows: Rows,
    *,
    rng: np.random.Generator,
    others: Sequence[Rows] = (),
    again: bool = False,
    seconds: float = np.inf,
) -> int:
    """Set kernel and noise from rows; `again` goes on from the values they have.

    `others` are the same rows with inputs in other units: those are chosen with which an exact GP of
    some random rows predicts others best. Returns 0 for `rows`, or the number of the other, from 1.
    Without a likelihood all noise is the rows' known one. Parameters that do not require gradients
    stay. Time O(GROUPS · GROUP³ P) per iteration; where `seconds` are few, fewer groups.
    """
    begin = time.perf_counter()
    modules = _modules(kernel, likelihood)
    parameters = [p for p in modules.parameters() if p.requires_grad]
    count = max(GROUPS // rows.y.shape[1], GROUPS // 4)
    candidates, chosen = [rows, *others], 0
    if np.isfinite(seconds):
        affordable = seconds / _price(kernel, likelihood, rows, parameters, len(candidates), rng)
        count = int(np.clip(affordable, FEWEST_GROUPS, count))

    def out_of_time() -> bool:
        return time.perf_counter() - begin > seconds

    def climb(
        rows: Rows, groups: list[np.ndarray], iterations: int, start: list[Tensor] | None = None
    ) -> _End:
        if start is not None:
            _set_values(modules, start)
        objective = _Objective(kernel, likelihood, rows, groups, parameters)
        maximise(objective, parameters, solver="lbfgs", max_iter=iterations, after_step=out_of_time)
        evidence = float(_Objective(kernel, likelihood, rows, groups, [])())
        return _End(evidence, _values(modules))

    if not again:
        share = -(-count // len(candidates))
        groups = [g for rows in candidates for g in neighbourhoods(rows.x, rng, count=share)]
        groups = groups[:1] if len(rows) <= WHOLE else groups
        some = rng.permutation(len(rows))[: COMPARED if np.isinf(seconds) else COMPARED // 2]

        def error(rows: Rows, end: _End) -> float:
            _set_values(modules, end.values)
            return _held_out_error(kernel, likelihood, rows.take(some))

        first, ends = _values(modules), []
        for rows in candidates:
            _set_values(modules, first)
            smooth, short = (
                climb(rows, groups, ROUNDS[0], values)
                for values in _starts(kernel, likelihood, rows, groups)
            )
            ahead = short.evidence > smooth.evidence + MARGIN
            # Without structure all scales are alike, and the shortest explain noise.
            sound = ahead and error(rows, short) < (1 + TOLERATED) * error(rows, smooth)
            ends.append(short if sound else smooth)
        if others:
            errors = np.array([error(*pair) for pair in zip(candidates, ends, strict=True)])
            errors[1:] /= AHEAD
            chosen = int(np.nanargmin(errors))
        _set_values(modules, ends[chosen].values)
    rows = candidates[chosen]
    places = coordinates(kernel, rows.x)
    if likelihood is not None and _is_noisy(kernel, likelihood):
        few = max(count // NOISY_GROUPS_LESS, 1)
        groups = neighbourhoods(places, rng, NOISY_GROUP, few)
        climb(rows, groups, ROUNDS[0])
    else:
        climb(rows, neighbourhoods(places, rng, count=count), ROUNDS[1])
    return chosen


@torch.no_grad()
def _is_noisy(kernel: ScaleKernel, likelihood: GaussianLikelihood) -> bool:
    """Whether the noise is most of what is seen."""
    return float(likelihood.noise.mean()) > float(kernel.outputscale.mean())


@torch.no_grad()
def _held_out_error(
    kernel: ScaleKernel, likelihood: GaussianLikelihood | None, rows: Rows
) -> float:
    """Return the squared error of the exact GP of two thirds of the rows on the others, by weight."""
    n = 2 * len(rows) // 3
    base, rho2 = kernel.base_kernel, kernel.outputscale
    noise = rows.noise(_learnt_noise(likelihood, rows)) / rho2
    functions = PointBasis(rows.x[:n]).at(base)
    a = block_solution(functions, noise[:n], rows.y[:n])
    error = rows.y[n:] - functions.evaluate(rows.x[n:]) @ a
    beforehand = rows.known[n:] if likelihood is None else 1 + rows.known[n:]
    weights = rows.weights[n:, None] / beforehand  # the same for whatever has been learnt
    return float((error.square() * weights / weights.mean(0)).mean())


def _price(
    kernel: ScaleKernel,
    likelihood: GaussianLikelihood | None,
    rows: Rows,
    parameters: list[nn.Parameter],
    n_candidates: int,
    rng: np.random.Generator,
) -> float:
    """Return about how many seconds each group adds to the whole work."""
    size = min(GROUP, len(rows))
    pair = [rng.choice(len(rows), size, replace=False) for _ in range(2)]
    objective = _Objective(kernel, likelihood, rows, pair, parameters)
    with torch.enable_grad():
        objective()  # the first call is slower
        begin = time.perf_counter()
        objective()
    per_group = (time.perf_counter() - begin) / 2
    tried = len(STARTS) + len(SINGLE_STARTS) * min(rows.x.shape[1], MOST_SINGLE)
    calls = n_candidates * (tried / 8 + 2 * EVALUATIONS * ROUNDS[0]) + EVALUATIONS * ROUNDS[1]
    return calls * per_group


def coordinates(kernel: ScaleKernel, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Return rows in units in which the kernel is near one where they are near each other."""
    base = kernel.base_kernel
    return x / base.lengthscale.detach().to(x) if is_se_ard(base) else x


def neighbourhoods(
    places: Float[Tensor, "n d"], rng: np.random.Generator, size: int = GROUP, count: int = GROUPS
) -> list[Int[np.ndarray, " k"]]:
    """Return groups of neighbouring rows, thinned by 1, 4, 16, … in turn; all rows if they are few."""
    n = len(places)
    if n <= WHOLE:
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


class _End(NamedTuple):
    """Where a climb ended: evidence per row and all parameters."""

    evidence: float
    values: list[Tensor]


class _Objective:
    """Log evidence of all groups per row and output, less a pull towards the start."""

    def __init__(
        self,
        kernel: ScaleKernel,
        likelihood: GaussianLikelihood | None,
        rows: Rows,
        groups: list[np.ndarray],
        parameters: list[nn.Parameter],
    ):
        self.kernel, self.likelihood, self.parameters = kernel, likelihood, parameters
        self.groups = [rows.take(group) for group in groups]
        self.start = [p.detach().clone() for p in parameters]
        self.size = sum(len(g) for g in groups) * rows.y.shape[1]

    def __call__(self) -> Tensor:
        """Return the value, differentiable in the parameters: groups in parallel, each with its gradient."""
        jobs = [partial(self._group, group) for group in self.groups]
        results = run_all(jobs, self.groups[0].x.device)
        value = torch.stack([result[0] for result in results]).sum() / self.size
        for k, (p, start) in enumerate(zip(self.parameters, self.start, strict=True)):
            slope = torch.stack([result[1][k] for result in results]).sum(0) / self.size
            value = value + ((p - p.detach()) * slope).sum() - PULL * (p - start).square().sum()
        return value

    def _group(self, rows: Rows) -> tuple[Tensor, list[Tensor]]:
        """Return the log evidence of a group and its gradients."""
        with torch.set_grad_enabled(bool(self.parameters)):
            K = PointBasis(rows.x).at(self.kernel.base_kernel).gram()
            noise = rows.noise(_learnt_noise(self.likelihood, rows))
            value = log_evidence(K, self.kernel.outputscale, noise, rows.y)
            if not self.parameters:
                return value, []
            found = torch.autograd.grad(value, self.parameters, allow_unused=True)
        pairs = zip(self.parameters, found, strict=True)
        return value.detach(), [torch.zeros_like(p) if g is None else g for p, g in pairs]


def _starts(
    kernel: ScaleKernel,
    likelihood: GaussianLikelihood | None,
    rows: Rows,
    groups: list[np.ndarray],
) -> list[list[Tensor]]:
    """Return values of all parameters to climb from, the last of them set.

    The median trick and noise that explains nearly all; and, from a search over shorter
    length-scales with little noise, the greatest evidence. From the first no gradient leads to a
    function that changes fast, from the second none to a faint one under much noise.
    """
    modules = _modules(kernel, likelihood)
    learns_noise = likelihood is not None and likelihood.raw_noise.requires_grad
    given = likelihood is None or not learns_noise or bool(likelihood.raw_noise.any())
    base = kernel.base_kernel
    fixed = not is_se_ard(base) or bool(base.raw_lengthscale.any())
    fixed = fixed or not base.raw_lengthscale.requires_grad
    initialise_hyperparameters(kernel, likelihood, rows.x, rows.y)
    starts = [_values(modules)]
    with torch.no_grad():
        if likelihood is not None and not given:
            likelihood.noise = (FIRST_NOISE * likelihood.noise).clamp_min(2 * SMALLEST_NOISE)
    if not fixed:
        _shorten(base, _Objective(kernel, likelihood, rows, groups[: len(groups) // 4 + 1], []))
    return [*starts, _values(modules)]


def _learnt_noise(likelihood: GaussianLikelihood | None, rows: Rows) -> Float[Tensor, " p"]:
    """Return the variance of every output's noise that is learnt, none without a likelihood."""
    n_outputs = rows.y.shape[1]
    if likelihood is None:
        return rows.y.new_zeros(n_outputs)
    return likelihood.noise.reshape(-1).expand(n_outputs)


def _modules(kernel: Kernel, likelihood: GaussianLikelihood | None) -> nn.ModuleList:
    return nn.ModuleList([kernel] if likelihood is None else [kernel, likelihood])


@torch.no_grad()
def _shorten(base: Kernel, objective: _Objective) -> None:
    """Set the length-scales of the greatest evidence among shares of the present ones."""
    scales = base.lengthscale.detach().clone()
    scales = _best([share * scales for share in STARTS], base, objective)
    n_features = scales.shape[1]
    for d in range(n_features if 1 < n_features <= MOST_SINGLE else 0):
        factors = torch.ones(len(SINGLE_STARTS) + 1, 1, n_features).to(scales)
        factors[1:, 0, d] = torch.tensor(SINGLE_STARTS).to(scales)
        scales = _best([factor * scales for factor in factors], base, objective)


def _best(tried: list[Tensor], base: Kernel, objective: _Objective) -> Tensor:
    """Set and return the length-scales of the greatest evidence."""
    values = []
    for scales in tried:
        base.lengthscale = scales
        values.append(float(objective()))
    best = int(np.nanargmax(values))
    base.lengthscale = tried[0 if values[best] < values[0] + MARGIN else best]
    return base.lengthscale.detach().clone()


def _values(module: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in module.parameters()]


@torch.no_grad()
def _set_values(module: nn.Module, values: list[Tensor]) -> None:
    for p, value in zip(module.parameters(), values, strict=True):
        p.copy_(value)
