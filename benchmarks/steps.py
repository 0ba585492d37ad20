"""One learning step of the decoupled posterior (multiscale basis), written in several ways.

All compute the bound's data part K_Xα a and the sampled quadratic aᵀK_α,S a_S of the mean with the
gradient of everything, which is what grows with M_α; `ours` is the whole step of the package, its
covariance part and Adam included.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.processes import peak_megabytes
from decoupledgp.bases import MultiscaleBasis
from decoupledgp.kernels import se_ard
from decoupledgp.learners import GradientLearner
from decoupledgp.likelihoods import gaussian_likelihood
from decoupledgp.ops import exp_matmul, multiscale_features, multiscale_quadratic
from decoupledgp.ops.backend import exp_in_place
from decoupledgp.ops.exponential import blocks
from decoupledgp.ops.threads import run_all
from decoupledgp.posteriors import DecoupledPosterior

PLAIN_BLOCK = 2048
"""Mean functions at once in the plain quadratic, so that it fits in memory at all."""


@dataclass(frozen=True)
class Problem:
    """Sizes of a step."""

    features: int = 23
    rows: int = 1024
    mean: int = 16384
    cov: int = 128
    columns: int = 1024
    outputs: int = 1
    dtype: str = "float32"

    def __str__(self) -> str:
        return (
            f"D = {self.features}, N_m = {self.rows}, M_β = {self.cov}, |S| = {self.columns}, "
            f"P = {self.outputs}, multiscale, {self.dtype}"
        )

    def normal(self, *shape: int, seed: int = 0) -> Tensor:
        """Return random numbers of the problem's type."""
        values = np.random.default_rng(seed).standard_normal(shape)
        return torch.from_numpy(values).to(getattr(torch, self.dtype))


Step = Callable[[], Any]


def whole_step(problem: Problem) -> Step:
    """The package's own step: posterior, bound, KL, Adam."""
    z = problem.normal(problem.mean, problem.features)
    posterior = DecoupledPosterior(
        se_ard(problem.features),
        MultiscaleBasis(z),
        MultiscaleBasis(z[: problem.cov]),
        n_outputs=problem.outputs,
    )
    posterior.kernel.base_kernel.lengthscale = (2 * problem.features) ** 0.5
    likelihood = gaussian_likelihood(problem.outputs).to(z)
    learner = GradientLearner(
        posterior, likelihood, learning_rate=0.01, kl_batch_size=problem.columns
    )
    x = problem.normal(problem.rows, problem.features, seed=1)
    y = problem.normal(problem.rows, problem.outputs, seed=2)
    rng = np.random.default_rng(3)
    return lambda: learner.step(x, y, n_total=10**6, iteration=1, rng=rng)


def leaves(problem: Problem) -> tuple[Tensor, ...]:
    """Parameters of the mean: locations, log length-scales of functions and kernel, coefficients."""
    z = problem.normal(problem.mean, problem.features)
    log_c = 0.1 * problem.normal(problem.mean, problem.features, seed=4)
    log_s = torch.full((problem.features,), 0.5 * np.log(2 * problem.features), dtype=z.dtype)
    a = problem.normal(problem.mean, problem.outputs, seed=5)
    return tuple(part.requires_grad_() for part in (z, log_c, log_s, a))


def mean_part(problem: Problem) -> Step:
    """The package's two operators alone."""
    z, log_c, log_s, a = parameters = leaves(problem)
    x = problem.normal(problem.rows, problem.features, seed=1)
    S = torch.arange(problem.columns)

    def step() -> None:
        l = (log_c + log_s).exp()
        G, b = multiscale_features(z, l, log_s.exp())
        data = exp_matmul(torch.cat([-x.square(), 2 * x], 1), G, b, a).square().sum()
        (data + multiscale_quadratic(z, l, a, z[S], l[S], a[S])).backward()
        clear(parameters)

    return step


def plain_data(x: Tensor, z: Tensor, log_c: Tensor, log_s: Tensor, a: Tensor) -> Tensor:
    """The data part as one writes it: a matrix product of expanded squares, then exp."""
    l2, s2 = (2 * (log_c + log_s)).exp(), (2 * log_s).exp()
    w = 1 / (l2 + s2)
    log_K = 2 * x @ (z * w).T - x.square() @ w.T - (z.square() * w).sum(1)
    factor = (0.5 * torch.log(2 * w) + 0.5 * (log_c + 2 * log_s)).sum(1)
    return ((log_K + factor).exp() @ a).square().sum()


def plain_quadratic(
    part: slice, S: Tensor, z: Tensor, log_c: Tensor, log_s: Tensor, a: Tensor
) -> Tensor:
    """Some functions' share of the quadratic as one writes it: a (block, |S|, D) array."""
    l = (log_c + log_s).exp()
    total = l[part, None].square() + l[S].square()
    ratio = (2 * l[part, None] * l[S] / total).log().sum(-1)
    K = (0.5 * ratio - ((z[part, None] - z[S]).square() / total).sum(-1)).exp()
    return ((a[part] @ a[S].T) * K).sum()


def plain(problem: Problem, wrap: Callable[..., Any] = lambda f: f) -> Step:
    """The same with autograd through the formulas; `wrap` may compile the two functions."""
    parameters = leaves(problem)
    x = problem.normal(problem.rows, problem.features, seed=1)
    S = torch.arange(problem.columns)
    data, quadratic = wrap(plain_data), wrap(plain_quadratic)

    def step() -> None:
        data(x, *parameters).backward()
        for start in range(0, problem.mean, PLAIN_BLOCK):
            quadratic(slice(start, start + PLAIN_BLOCK), S, *parameters).backward()
        clear(parameters)

    return step


def floor(problem: Problem) -> Step:
    """Bare products, exponentials and pair loop of the same sizes, with nothing around them.

    On the same threads and with the same exponential as ours: both beat PyTorch's own.
    """
    from benchmarks.pairs import bare_pairs

    q = 2 * problem.features
    F = problem.normal(problem.rows, q, seed=1)
    G = problem.normal(problem.mean, q) * 0.01
    A = problem.normal(problem.mean, problem.outputs)
    gradient = problem.normal(problem.rows, problem.outputs)
    z, l = problem.normal(problem.mean, problem.features), torch.ones_like(G[:, : problem.features])
    S = slice(problem.columns)
    pairs = [t.numpy() for t in (z, l, A)] + [t[S].T.contiguous().numpy() for t in (z, l, A)]
    parts = list(blocks(problem.rows, problem.mean))
    threads = torch.get_num_threads()

    def products(lane: list[slice]) -> None:
        memory = F.new_empty(problem.rows, parts[0].stop)
        for part in lane:
            A[part].T @ exp_in_place(torch.mm(F, G[part].T, out=memory)).T
        for part in lane:
            K = exp_in_place(torch.mm(F, G[part].T, out=memory))
            gradient.T @ K
            F.T @ K

    def step() -> None:
        run_all([partial(products, parts[k::threads]) for k in range(threads)], F.device)
        bare_pairs(*pairs)

    return step


def clear(parameters: tuple[Tensor, ...]) -> None:
    """Forget gradients."""
    for parameter in parameters:
        parameter.grad = None


WAYS: dict[str, Callable[[Problem], Step]] = {
    "ours": whole_step,
    "our operators": mean_part,
    "autograd": plain,
    "torch.compile": lambda problem: plain(problem, torch.compile),
    "floor": floor,
}


def measure_step(problem: Problem, way: str, repeats: int) -> dict[str, float]:
    """Return the seconds of the fastest of several steps, and the megabytes they added to the process.

    The fastest, because whatever else the machine does can only slow a step down.
    """
    WAYS["ours"](Problem(problem.features, 64, 64, 16, 16, problem.outputs, problem.dtype))()
    before = peak_megabytes()
    step, seconds = WAYS[way](problem), []
    step()
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return {"seconds": min(seconds), "megabytes": peak_megabytes() - before}
