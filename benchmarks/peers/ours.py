"""This library with nothing set but the clock; where test rows are of new groups, it is told the groups.

The first use on a machine compiles the inner loops, once and for all; `warm_up` does that beforehand.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.peers.scores import LEVELS, Prediction
from benchmarks.tables import Split
from decoupledgp import DecoupledGPRegressor

__all__ = ["predict_by_clock", "predict_by_default", "warm_up"]


def predict_by_clock(
    split: Split, fold: int, clock: float, times: Sequence[float]
) -> Iterator[Prediction]:
    """Yield predictions after `clock` seconds; ours gets no more than that."""
    yield _predict(split, DecoupledGPRegressor(max_seconds=clock, random_state=fold))


def predict_by_default(split: Split, fold: int) -> Prediction:
    """Return predictions of the regressor as it comes, with its warnings and NaNs counted."""
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        prediction = _predict(split, DecoupledGPRegressor(random_state=fold))
    assert prediction.std is not None
    bad = sum(int((~np.isfinite(part)).sum()) for part in (prediction.mean, prediction.std))
    prediction.extra |= {"warnings": len(raised), "NaN": bad}
    return prediction


def warm_up() -> None:
    """Have the inner loops compiled and kept on disk; does nothing if they are."""
    X = np.random.default_rng(0).standard_normal((200, 2))
    DecoupledGPRegressor(max_seconds=1, random_state=0).fit(X, X[:, 0]).predict(X, return_std=True)


def _predict(split: Split, model: DecoupledGPRegressor) -> Prediction:
    one = split.y_train.shape[1] == 1
    start = time.perf_counter()
    model.fit(split.X_train, split.y_train[:, 0] if one else split.y_train, groups=split.groups)
    seconds = time.perf_counter() - start
    mean, std = model.predict(split.X_test, return_std=True)
    intervals = {level: model.predict_interval(split.X_test, level) for level in LEVELS}
    return Prediction(1, mean, std, intervals, seconds)
