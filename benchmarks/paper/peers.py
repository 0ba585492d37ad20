"""What stands beside the paper's systems: GPyTorch's SVGP and boosting for a given time, and as they come."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.paper.evaluate import point_scores
from decoupledgp.data import Split

__all__ = ["boosting", "boosting_by_clock", "linear", "svgp"]


def svgp(split: Split, inducing: int, batch: int, seconds: float, seed: int) -> dict[str, Any]:
    """Learn GPyTorch's SVGP until the time is over; one output, settings as in `peers.gps`.

    By natural gradient, and Adam for the rest: better than Adam alone on most sets of `benchmarks.peers`.
    """
    from benchmarks.peers.gps import NATURAL, Training

    column = Split(split.X_train, split.y_train[:, None], split.X_test, split.y_test[:, None])
    start, steps = time.perf_counter(), 0
    training = Training(column, seed, NATURAL._replace(inducing=inducing, batch=batch))
    while time.perf_counter() - start < seconds:
        training.step()
        steps += 1
    taken = time.perf_counter() - start
    mean, std = training.predict(split.X_test)
    return {
        **point_scores(split.y_test, mean[:, 0], std[:, 0]),
        "bound": training.held_out_bound(column),
        "seconds": taken,
        "steps": steps,
    }


def boosting(split: Split, seed: int) -> dict[str, Any]:
    """Return the scores of scikit-learn's HistGradientBoostingRegressor as it comes."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    return _point_model(HistGradientBoostingRegressor(random_state=seed), split)


def boosting_by_clock(split: Split, seconds: float, seed: int) -> dict[str, Any]:
    """Learn scikit-learn's boosting for a given time: settings by a search, as in `peers.trees`."""
    from benchmarks.peers.boosters import HISTGRAD
    from benchmarks.peers.trees import learn_means

    order = np.random.default_rng(seed).permutation(len(split.X_train))
    start = time.perf_counter()
    found = learn_means(split.X_train, split.y_train, order, seed, seconds, HISTGRAD)
    taken = time.perf_counter() - start
    return {
        **point_scores(split.y_test, HISTGRAD.predict(found.model, split.X_test), None),
        "seconds": taken,
        "trees": found.trees,
        "leaves": found.trial.leaves,
        "learning_rate": found.trial.rate,
    }


def linear(split: Split) -> dict[str, Any]:
    """Return the scores of linear regression."""
    from sklearn.linear_model import LinearRegression

    return _point_model(LinearRegression(), split)


def _point_model(model: Any, split: Split) -> dict[str, Any]:
    start = time.perf_counter()
    model.fit(split.X_train, split.y_train)
    seconds = time.perf_counter() - start
    return {**point_scores(split.y_test, model.predict(split.X_test), None), "seconds": seconds}
