"""What a peer predicts, and how good that is.

All scores are in standard deviations of the (standardised) target and averaged over the outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

from decoupledgp.report.metrics import gaussian_nll, nmse

__all__ = ["LEVELS", "Prediction", "normal_intervals", "score"]

LEVELS = (0.5, 0.8, 0.95)

Interval = tuple[np.ndarray, np.ndarray]


@dataclass
class Prediction:
    """A model's predictions for the test rows, all of shape (n, P)."""

    times: float
    """The multiple of our time that the model was given."""
    mean: np.ndarray
    std: np.ndarray | None = None
    intervals: Mapping[float, Interval] = field(default_factory=dict)
    """Lower and upper ends of central intervals by level; normal ones if only `std` is given."""
    seconds: float = float("nan")
    """Seconds of learning (not of prediction)."""
    extra: dict[str, float] = field(default_factory=dict)
    """Whatever else is worth a word, such as rows, steps or trees."""

    def __post_init__(self) -> None:
        if self.std is not None and not self.intervals:
            self.intervals = normal_intervals(self.mean, self.std)


def normal_intervals(mean: np.ndarray, std: np.ndarray) -> dict[float, Interval]:
    """Return the central intervals of normal distributions."""
    widths = {level: NormalDist().inv_cdf(0.5 + level / 2) for level in LEVELS}
    return {level: (mean - z * std, mean + z * std) for level, z in widths.items()}


def score(y: np.ndarray, prediction: Prediction) -> dict[str, float]:
    """Return RMSE, nMSE, and what std and intervals allow: NLL, coverage and the width at 95%."""
    mean = prediction.mean.reshape(y.shape)
    if not np.isfinite(mean).all():
        raise FloatingPointError(f"{np.sum(~np.isfinite(mean))} of {mean.size} means not finite")
    scores = {"RMSE": float(np.sqrt(np.mean((mean - y) ** 2))), "nMSE": nmse(y, mean)}
    if prediction.std is not None:
        scores["NLL"] = gaussian_nll(y, mean, prediction.std.reshape(y.shape))
    for level, (low, high) in prediction.intervals.items():
        low, high = low.reshape(y.shape), high.reshape(y.shape)
        scores[f"{level:.0%}"] = float(np.mean((low <= y) & (y <= high)))
        if level == LEVELS[-1]:
            scores["width"] = float(np.mean(high - low))
    return scores
