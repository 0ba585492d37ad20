"""How good predictions are: error, likelihood, coverage."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

__all__ = ["Scores", "coverage", "gaussian_nll", "nmse", "score"]


class Scores(NamedTuple):
    """Scores of Gaussian predictions, averaged over rows and outputs."""

    nmse: float
    """Mean squared error over the variance of the test outputs (the paper's nMSE)."""
    rmse: float
    nll: float
    """Mean negative log predictive density per row and output."""
    coverage: float
    """Share of targets inside the 95% interval."""


def score(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> Scores:
    """Return all scores of predictions `mean` ± `std` for targets y, of shape (n,) or (n, P)."""
    return Scores(
        nmse(y, mean),
        float(np.sqrt(np.mean(np.square(y - mean)))),
        gaussian_nll(y, mean, std),
        coverage(y, mean, std),
    )


def nmse(y: np.ndarray, mean: np.ndarray) -> float:
    """Return mean squared error / variance, the mean over outputs of it."""
    return float(np.mean(np.mean(np.square(y - mean), axis=0) / np.var(y, axis=0)))


def gaussian_nll(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> float:
    """Return the mean of -log N(y | mean, std²)."""
    z = (y - mean) / std
    return float(np.mean(0.5 * np.square(z) + np.log(std) + 0.5 * np.log(2 * np.pi)))


def coverage(y: np.ndarray, mean: np.ndarray, std: np.ndarray, level: float = 0.95) -> float:
    """Return the share of targets inside the central interval of this level."""
    return float(np.mean(np.abs(y - mean) <= ndtri(0.5 + level / 2) * std))
