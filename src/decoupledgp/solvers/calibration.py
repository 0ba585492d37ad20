"""Honest variances: one factor on the latent variance and one noise, fitted to rows held out.

A small covariance basis does not know what the large mean basis knows, so its variance of f is too
large; and the noise that explains the rows learnt from need not be the error on new ones. Both are
set, per output, so that held-out residuals are most likely under N(0, c·var f + s²), where a row of
weight w with a known noise variance has (s² + known)/w in place of s²; and widened if 95% intervals hold
fewer than 95% of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from jaxtyping import Float

__all__ = ["LATENT_FACTORS", "Calibration", "HeldOut", "calibrate"]

SMALLEST = 1e-12
"""Variances in standard deviations of the target, squared: no smaller ones are told apart."""

WIDENED = 0.95
"""If normal intervals of this probability hold fewer of the held-out rows, all are widened until they do:
errors often have heavier tails, and the most likely variance then leaves them out."""

LATENT_FACTORS = np.concatenate([[0.0], np.geomspace(1e-4, 10, 61)])
"""Factors that are tried; a noise that goes well with each is found by bisection."""


@dataclass
class Calibration:
    """var y = latent · var f + noise, per output, in standardised units; `scores` of held-out rows.

    A noise of None is the likelihood's own. The scores are |y - mean| / std, sorted: their quantiles
    make conformal intervals.
    """

    latent: Float[np.ndarray, " p"]
    noise: Float[np.ndarray, " p"] | None
    scores: Float[np.ndarray, "k p"]

    def quantile(self, coverage: float) -> Float[np.ndarray, " p"]:
        """Return the score that this share of new rows stays below, with the finite-sample margin."""
        k = len(self.scores)
        rank = int(np.ceil((k + 1) * coverage))
        if rank > k:
            return np.full(len(self.latent), np.inf)
        return self.scores[rank - 1]


@dataclass
class HeldOut:
    """Residuals of rows that had not been learnt from, the model's variances of f there, and their noise.

    All in standardised units; a row's noise has the variance (s² + known) / weight.
    """

    residuals: Float[np.ndarray, "k p"]
    latent: Float[np.ndarray, "k p"]
    weights: Float[np.ndarray, " k"]
    known: Float[np.ndarray, "k p"]

    @classmethod
    def none(cls, n_outputs: int) -> HeldOut:
        """Return no rows."""
        empty = np.zeros((0, n_outputs))
        return cls(empty, empty, np.zeros(0), empty)

    def __len__(self) -> int:
        return len(self.weights)

    def followed_by(self, other: HeldOut, most: int) -> HeldOut:
        """Return the latest of both."""
        parts = zip(vars(self).values(), vars(other).values(), strict=True)
        return HeldOut(*(np.concatenate(pair)[-most:] for pair in parts))

    def in_units(self, change: Float[np.ndarray, " p"]) -> HeldOut:
        """Return the same rows with targets measured in units that are smaller by `change`."""
        squared = change**2
        return HeldOut(
            self.residuals * change, self.latent * squared, self.weights, self.known * squared
        )


def calibrate(rows: HeldOut) -> Calibration:
    """Fit factor and noise of every output to held-out residuals and variances of f."""
    unit = 1 / rows.weights
    columns = zip(np.square(rows.residuals).T, rows.latent.T, rows.known.T, strict=True)
    pairs = [_fit(squares, v, unit, known * unit) for squares, v, known in columns]
    factor, noise = np.array(pairs).T
    found = Calibration(factor, noise, _scores(rows, factor, noise))
    wider = np.maximum(found.quantile(WIDENED) / NormalDist().inv_cdf(0.5 + WIDENED / 2), 1)
    wider = np.where(np.isfinite(wider), wider, 1) ** 2
    factor, noise = wider * factor, wider * noise
    return Calibration(factor, noise, _scores(rows, factor, noise))


def _scores(rows: HeldOut, factor: np.ndarray, noise: np.ndarray) -> Float[np.ndarray, "k p"]:
    """Return |residual| / std, sorted."""
    variance = factor * rows.latent + (noise + rows.known) / rows.weights[:, None]
    return np.sort(np.abs(rows.residuals) / np.sqrt(variance), axis=0)


def _fit(
    squares: np.ndarray, latent: np.ndarray, unit: np.ndarray, known: np.ndarray
) -> tuple[float, float]:
    """Return the factor and noise under which squared residuals are most likely."""
    best = (np.inf, 1.0, 1.0)
    for factor in LATENT_FACTORS:
        fixed = factor * latent + known
        noise = _best_noise(squares, fixed, unit)
        variance = fixed + noise * unit
        loss = float(np.mean(np.log(variance) + squares / variance))
        best = min(best, (loss, float(factor), noise))
    return best[1], best[2]


def _best_noise(squares: np.ndarray, fixed: np.ndarray, unit: np.ndarray) -> float:
    """Return a minimum of mean(log v + r/v), v = fixed + s unit, in s: bisection on its slope's sign."""
    largest = max(float((squares / unit).max()), SMALLEST)
    low, high = np.log(SMALLEST), np.log(largest + SMALLEST)
    for _ in range(50):
        middle = 0.5 * (low + high)
        variance = fixed + np.exp(middle) * unit
        if np.mean(unit / variance - unit * squares / variance**2) > 0:
            high = middle
        else:
            low = middle
    return float(np.exp(0.5 * (low + high)))
