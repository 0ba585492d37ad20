"""Gradient boosting with the seconds it is given: a small search, then the best with what is left.

The settings of `TRIALS` share half of the time, one model per output, with early stopping on a tenth
of the training rows. The one with the lowest error on that tenth wins. Where the clock cut it short
it is learnt again for as long as there is time; where it stopped by itself it is learnt again from all
rows, if that fits. Means have no distribution, so the 95% interval comes from two more models, of the
2.5% and 97.5% quantiles, with the winner's settings; they get as long again as the mean took, and
that time is reported apart.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from benchmarks.peers.boosters import Fitted, Library, Trial
from benchmarks.peers.scores import Prediction
from benchmarks.tables import Split

__all__ = ["TRIALS", "Means", "learn_means", "predict_by_clock", "predict_by_default"]

TRIALS = (Trial(31, 0.1), Trial(127, 0.1), Trial(255, 0.05), Trial(63, 0.03))
TAILS = (0.025, 0.975)


class Means(NamedTuple):
    """A model of means, the settings that won and its trees."""

    model: Any
    trial: Trial
    trees: int


def predict_by_clock(
    split: Split, fold: int, clock: float, times: Sequence[float], library: Library
) -> Iterator[Prediction]:
    """Yield predictions after each multiple of `clock` seconds, each from a run of its own."""
    order = np.random.default_rng(fold).permutation(len(split.X_train))
    outputs = split.y_train.shape[1]
    for multiple in sorted(times):
        columns = [
            _one_output(split, p, order, fold, multiple * clock / outputs, library)
            for p in range(outputs)
        ]
        mean, low, high = (
            np.column_stack(part) for part in zip(*(c[0] for c in columns), strict=True)
        )
        seconds, quantile_seconds, trees = np.transpose([c[1] for c in columns])
        extra = {"trees": trees.mean(), "quantile seconds": quantile_seconds.sum()}
        yield Prediction(multiple, mean, None, {0.95: (low, high)}, seconds.sum(), extra)


def _one_output(
    split: Split, p: int, order: np.ndarray, seed: int, seconds: float, library: Library
) -> tuple[list[np.ndarray], tuple[float, float, float]]:
    """Return mean, lower and upper predictions; seconds, seconds for the quantiles, and trees."""
    rows = split.X_train, split.y_train[:, p]
    part = _parts(*rows, order)
    start = time.perf_counter()
    model, trial, trees = learn_means(*rows, order, seed, seconds, library)
    spent = time.perf_counter() - start
    predictions = [library.predict(model, split.X_test)]
    start = time.perf_counter()
    for quantile in TAILS:
        deadline = time.perf_counter() + spent / len(TAILS)
        tail = library.fit(part, trial, seed, deadline, quantile)
        predictions.append(library.predict(tail.model, split.X_test))
    return predictions, (spent, time.perf_counter() - start, trees)


def learn_means(
    X: np.ndarray, y: np.ndarray, order: np.ndarray, seed: int, seconds: float, library: Library
) -> Means:
    """Search for half of the time, then learn the winner; the first tenth of `order` is kept back."""
    end, part = time.perf_counter() + seconds, _parts(X, y, order)
    trial, found = _best(library, part, seed, seconds / 2)
    model, trees = _again(library, part, (X, y), seed, end, trial, found)
    return Means(model, trial, trees)


def _parts(X: np.ndarray, y: np.ndarray, order: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the rows that are learnt from and those kept back, inputs and targets of each."""
    kept, rest = np.split(order, [max(len(order) // 10, 1)])
    return X[rest], y[rest], X[kept], y[kept]


def _best(
    library: Library, part: tuple[np.ndarray, ...], seed: int, seconds: float
) -> tuple[Trial, Fitted]:
    """Return the trial with the lowest loss; time that one leaves over goes to those after it."""
    end = time.perf_counter() + seconds
    done: list[tuple[Trial, Fitted]] = []
    for i, trial in enumerate(TRIALS):
        now = time.perf_counter()
        if done and now > end:
            break
        deadline = now + (end - now) / (len(TRIALS) - i)
        done.append((trial, library.fit(part, trial, seed, deadline, None)))
    return min(done, key=lambda pair: pair[1].loss)


def _again(
    library: Library,
    part: tuple[np.ndarray, ...],
    rows: tuple[np.ndarray, np.ndarray],
    seed: int,
    end: float,
    trial: Trial,
    found: Fitted,
) -> tuple[Any, int]:
    """Return the winner, learnt for longer or from all rows if there is time, and its trees."""
    if time.perf_counter() + 1.3 * found.seconds > end:
        return found.model, found.trees
    if found.finished:
        return library.refit(*rows, trial, seed, found.trees), found.trees
    longer = library.fit(part, trial, seed, end, None)
    better = min((found, longer), key=lambda fitted: fitted.loss)
    return better.model, better.trees


def predict_by_default(split: Split, fold: int) -> Prediction:
    """Return the means of scikit-learn's regressor as it comes, one per output."""
    start = time.perf_counter()
    models = [
        HistGradientBoostingRegressor(random_state=fold).fit(split.X_train, y)
        for y in split.y_train.T
    ]
    seconds = time.perf_counter() - start
    mean = np.column_stack([model.predict(split.X_test) for model in models])
    return Prediction(1, mean, seconds=seconds)
