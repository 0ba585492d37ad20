"""The systems: the paper's five, one output at a time, and what we set beside them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from gpytorch.kernels import RBFKernel

from benchmarks.paper import peers
from benchmarks.paper.choice import BROKE_DOWN, Beginning, choose, first_kernel
from benchmarks.paper.evaluate import Curve, scores
from benchmarks.paper.protocol import RATES, Protocol
from decoupledgp import (
    DecoupledGPRegressor,
    ExactGPRegressor,
    IncrementalGPRegressor,
    SparseGPRegressor,
    SVGPRegressor,
)
from decoupledgp.data import Split
from decoupledgp.kernels import smoothness
from decoupledgp.learners.gradient import BoundNotFiniteError

__all__ = ["SYSTEMS", "System"]

Result = list[dict[str, Any]]
"""Scores, one entry per output."""


@dataclass(frozen=True)
class System:
    """A column of the tables."""

    title: str
    run: Callable[[Split, Protocol, int, float | None], Result]
    """Takes the data, the protocol, a seed and the seconds it may have; targets are (N, P)."""
    timed: bool = False
    """Whether it gets the seconds that SVDGP took."""
    joint: bool = False
    """Whether it gets all outputs at once; otherwise one at a time, as in the paper."""
    ours: bool = True
    """Whether it is of this package."""


def online_model(
    name: str, p: Protocol, seed: int, rate: float, kernel: RBFKernel | None = None, **options: Any
) -> Any:
    """Return an online system with the protocol's sizes."""
    options |= {
        "preset": "paper",
        "kernel": kernel,
        "batch_size": p.batch_size,
        "basis_increment": p.increment,
        "learning_rate": rate,
        "random_state": seed,
    }
    if name == "svdgp":
        return DecoupledGPRegressor(p.mean_basis, p.cov_basis, **options)
    if name == "svi":
        return SVGPRegressor(p.svi, **options)
    return IncrementalGPRegressor(p.ivsgpr, **options)


def _online(
    name: str,
    split: Split,
    p: Protocol,
    seed: int,
    seconds: float | None,
    *,
    rates: Sequence[float] = RATES,
    **settings: Any,
) -> Result:
    """Choose what to begin with, then learn from scratch; the seconds are those of the run alone.

    Should that break down on the way, the next smaller γ_0 is taken, and the result says so.
    """
    X, y = split.X_train, split.y_train[:, 0]
    kernels = {distances: first_kernel(distances, X[: p.batch_size]) for distances in p.distances}
    candidates = [Beginning(*pair) for pair in product(p.distances, rates)]

    def make(begin: Beginning, **options: Any) -> Any:
        kernel = kernels[begin.distances]
        return online_model(name, p, seed, begin.rate, kernel, **settings, **options)

    start = time.perf_counter()
    begin, reached = choose(partial(make, max_iter=p.trial), X, y, candidates, seed)
    choosing = time.perf_counter() - start
    broken: list[float] = []
    while True:
        curve = _curve(split, p, seed, p.iterations)
        model = make(begin, max_iter=p.iterations, callbacks=[curve])
        try:
            model.fit(X, y)
            result = _scored(model, curve, split)
            if not np.isfinite([result[0]["nmse"], result[0]["bound"]]).all():
                raise BoundNotFiniteError("error or bound on the test rows is not finite")
            break
        except BROKE_DOWN as error:
            smaller = [other for other in RATES if other < begin.rate]
            if not smaller:
                raise
            print(f"γ_0 = {begin.rate} broke down: {error}", flush=True)
            broken.append(begin.rate)
            begin = begin._replace(rate=max(smaller))
    result[0] |= {**begin._asdict(), "rates": reached}
    result[0] |= {"seconds_choosing": choosing, "broken": broken}
    return result


def _batch(name: str, split: Split, p: Protocol, seed: int, seconds: float | None) -> Result:
    """Learn from the few rows that the paper gives the batch systems.

    The first length-scales are those whose objective is the better one after a few iterations.
    """
    X, y = split.X_train, split.y_train[:, 0]

    def learn(distances: str, iterations: int, **options: Any) -> Any:
        options |= {"kernel": first_kernel(distances, X[: p.batch_size]), "random_state": seed}
        options["max_iter"] = iterations
        if name == "gpr":
            model: Any = ExactGPRegressor(max_rows=p.gpr_rows, **options)
        else:
            model = SparseGPRegressor(p.vsgpr, max_rows=p.vsgpr_rows, **options)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "(?s).*learns from .* random rows")
            return model.fit(X, y)

    def objective(distances: str) -> float:
        try:
            history = learn(distances, p.batch_trial).history_
        except BROKE_DOWN:
            return -np.inf
        return history[-1]["elbo"] if history and np.isfinite(history[-1]["elbo"]) else -np.inf

    start = time.perf_counter()
    reached = {one: objective(one) for one in p.distances} if len(p.distances) > 1 else {}
    choosing = time.perf_counter() - start
    distances = max(p.distances, key=lambda one: reached.get(one, 0))
    curve = _curve(split, p, seed, p.batch_iterations)
    result = _scored(learn(distances, p.batch_iterations, callbacks=[curve]), curve, split)
    objectives = {one: value if np.isfinite(value) else None for one, value in reached.items()}
    result[0] |= {"distances": distances, "objectives": objectives, "seconds_choosing": choosing}
    return result


def _curve(split: Split, p: Protocol, seed: int, iterations: int) -> Curve:
    rows = np.random.default_rng([seed, 2]).permutation(len(split.X_test))[: p.curve_rows]
    marks = p.marks(iterations)
    return Curve(split.X_test[rows], split.y_test[rows, 0], len(split.X_train), marks)


def _scored(model: Any, curve: Curve, split: Split) -> Result:
    """Return the scores of a model that has been learnt, with its time and its curve."""
    seconds = curve.seconds
    result = scores(model, split.X_test, split.y_test, len(split.X_train))
    result[0] |= {"seconds": seconds, "iterations": model.n_iter_, "curve": curve.points}
    return result


def _defaults(split: Split, p: Protocol, seed: int, seconds: float | None) -> Result:
    """Our defaults, a model per output like the others: several would have to share length-scales."""
    start = time.perf_counter()
    model = DecoupledGPRegressor(max_seconds=seconds, random_state=seed)
    model.fit(split.X_train, split.y_train[:, 0])
    taken = time.perf_counter() - start
    (result,) = scores(model, split.X_test, split.y_test, len(split.X_train))
    sizes = {"n_mean_basis": model.n_mean_basis_, "n_cov_basis": model.n_cov_basis_}
    order = smoothness(model.kernel_.base_kernel)
    sizes["order"] = None if order == np.inf else order  # of a Matérn kernel
    return [{**result, **sizes, "rows": model.n_rows_, "seconds": taken}]


def _svgp(split: Split, p: Protocol, seed: int, seconds: float | None) -> Result:
    assert seconds is not None
    return [peers.svgp(_flat(split, 0), p.svi, p.batch_size, seconds, seed)]


def _boosting(split: Split, p: Protocol, seed: int, seconds: float | None) -> Result:
    return [peers.boosting(_flat(split, k), seed) for k in range(split.y_train.shape[1])]


def _boosting_by_clock(split: Split, p: Protocol, seed: int, seconds: float | None) -> Result:
    assert seconds is not None
    return [peers.boosting_by_clock(_flat(split, 0), seconds, seed)]


def _linear(split: Split, p: Protocol, seed: int, seconds: float | None) -> Result:
    return [peers.linear(_flat(split, k)) for k in range(split.y_train.shape[1])]


def _flat(split: Split, output: int) -> Split:
    """Return the same rows with one target."""
    return Split(split.X_train, split.y_train[:, output], split.X_test, split.y_test[:, output])


SYSTEMS = {
    "svdgp": System("SVDGP", partial(_online, "svdgp")),
    "svi": System("SVI", partial(_online, "svi")),
    "ivsgpr": System("iVSGPR", partial(_online, "ivsgpr")),
    "vsgpr": System("VSGPR", partial(_batch, "vsgpr")),
    "gpr": System("GPR", partial(_batch, "gpr")),
    "svdgp-0.1": System("SVDGP, γ_0 = 0.1", partial(_online, "svdgp", rates=(0.1,))),
    "svdgp-preconditioned": System(
        "SVDGP, preconditioned",
        partial(
            _online,
            "svdgp",
            rates=(0.1,),
            mean_preconditioner="nystrom",
            cov_preconditioner="full",
        ),
    ),
    "defaults": System("our defaults", _defaults, timed=True),
    "svgp": System("GPyTorch SVGP", _svgp, timed=True, ours=False),
    "boosting-timed": System(
        "HistGradientBoosting, searched", _boosting_by_clock, timed=True, ours=False
    ),
    "boosting": System("HistGradientBoosting", _boosting, joint=True, ours=False),
    "linear": System("linear regression", _linear, joint=True, ours=False),
}
"""In the order in which they run: SVDGP first, because others get the time that it took."""
