"""What stands beside the paper's systems: GPyTorch's SVGP for a given time, boosting, a linear fit."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.paper.evaluate import point_scores
from decoupledgp.data import Split

__all__ = ["boosting", "linear", "svgp"]


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


def linear(split: Split) -> dict[str, Any]:
    """Return the scores of linear regression."""
    from sklearn.linear_model import LinearRegression

    return _point_model(LinearRegression(), split)


def _point_model(model: Any, split: Split) -> dict[str, Any]:
    start = time.perf_counter()
    model.fit(split.X_train, split.y_train)
    seconds = time.perf_counter() - start
    return {**point_scores(split.y_test, model.predict(split.X_test), None), "seconds": seconds}
