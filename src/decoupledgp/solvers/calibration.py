"""Honest variances: one factor on the latent variance and one noise, fitted to rows held out.

A small covariance basis does not know what the large mean basis knows, so its variance of f is too
large; and the noise that explains the rows learnt from need not be the error on new ones. Both are
set, per output, so that held-out residuals are most likely under N(0, c·var f + s²).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

__all__ = ["Calibration", "calibrate"]

SMALLEST = 1e-12
"""Variances in standard deviations of the target, squared: no smaller ones are told apart."""

LATENT_FACTORS = np.concatenate([[0.0], np.geomspace(1e-4, 10, 61)])
"""Factors that are tried; a noise that goes well with each is found by bisection."""


@dataclass
class Calibration:
    """var y = latent · var f + noise, per output, in standardised units; `scores` of held-out rows.

    The scores are |y - mean| / std, sorted: their quantiles make conformal intervals.
    """

    latent: Float[np.ndarray, " p"]
    noise: Float[np.ndarray, " p"]
    scores: Float[np.ndarray, "k p"]

    def variance(self, latent: Float[np.ndarray, "n p"]) -> Float[np.ndarray, "n p"]:
        """Return the predictive variance for these variances of f."""
        return self.latent * latent + self.noise

    def quantile(self, coverage: float) -> Float[np.ndarray, " p"]:
        """Return the score that this share of new rows stays below, with the finite-sample margin."""
        k = len(self.scores)
        rank = int(np.ceil((k + 1) * coverage))
        if rank > k:
            return np.full(len(self.latent), np.inf)
        return self.scores[rank - 1]


def calibrate(residuals: Float[np.ndarray, "k p"], latent: Float[np.ndarray, "k p"]) -> Calibration:
    """Fit factor and noise of every output to held-out residuals and variances of f."""
    pairs = [_fit(r, v) for r, v in zip(np.square(residuals).T, latent.T, strict=True)]
    factor, noise = np.array(pairs).T
    scores = np.abs(residuals) / np.sqrt(factor * latent + noise)
    return Calibration(factor, noise, np.sort(scores, axis=0))


def _fit(squares: np.ndarray, latent: np.ndarray) -> tuple[float, float]:
    """Return the factor and noise under which squared residuals are most likely."""
    best = (np.inf, 1.0, 1.0)
    for factor in LATENT_FACTORS:
        noise = _best_noise(squares, factor * latent)
        variance = factor * latent + noise
        loss = float(np.mean(np.log(variance) + squares / variance))
        best = min(best, (loss, float(factor), noise))
    return best[1], best[2]


def _best_noise(squares: np.ndarray, latent: np.ndarray) -> float:
    """Return a minimum of mean(log(v + s) + r/(v + s)) in s: bisection on the sign of its slope."""
    low, high = np.log(SMALLEST), np.log(max(float(squares.max()), SMALLEST) + SMALLEST)
    for _ in range(50):
        middle = 0.5 * (low + high)
        variance = latent + np.exp(middle)
        if np.mean(1 / variance - squares / variance**2) > 0:
            high = middle
        else:
            low = middle
    return float(np.exp(0.5 * (low + high)))
