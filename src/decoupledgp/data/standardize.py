"""Columns to zero mean and unit variance, for streams whose later rows are not known yet."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from decoupledgp.data.warp import Warp

__all__ = ["Standardizer"]

FAR = 1e5
"""Standardised values are clipped here. A hundred thousand standard deviations away is nowhere near
any data, and squares of the clipped values still leave float64 enough digits for distances."""

FINITE = np.finfo(np.float64)


class Standardizer:
    """Centre and scale per column, in float64, fixed by the first rows.

    A column that has been constant so far is only centred. Its scale is fixed by the first rows in
    which it varies; until then all its centred values are zero, so that no distance depends on it.
    """

    def __init__(self, X: Float[np.ndarray, "n d"]):
        self.centre, self.scale, self.varies = _statistics(X.astype(np.float64))
        self.warp: Warp | None = None

    def update(self, X: Float[np.ndarray, "n d"]) -> None:
        """Fix the scale of columns that were constant until now."""
        if self.varies.all():
            return
        with np.errstate(over="ignore"):
            deviation = np.minimum(np.abs(X - self.centre).max(0), FINITE.max)
        new = ~self.varies & (deviation > _resolution(self.centre))
        self.scale[new] = deviation[new]
        self.varies |= new

    def transform(self, X: Float[np.ndarray, "n d"], far: float = FAR) -> Float[np.ndarray, "n d"]:
        """Return standardised columns, clipped at ±far, and warped if there is a warp."""
        with np.errstate(over="ignore"):
            standard = np.clip((X - self.centre) / self.scale, -far, far)
        return standard if self.warp is None else np.clip(self.warp(standard), -far, far)

    def inverse(self, X: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Return columns that were not warped in their original units."""
        return X * self.scale + self.centre


def _statistics(X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, standard deviation (1 where constant) and where it varies, without overflow."""
    largest = np.abs(X).max(0)
    largest[largest < FINITE.tiny] = 1
    unit = X / largest
    centre, deviation = unit.mean(0), unit.std(0)
    constant = unit.min(0) == unit.max(0)
    centre[constant] = unit[0, constant]
    varies = ~constant & (deviation > _resolution(centre)) & (deviation * largest > FINITE.tiny)
    return centre * largest, np.where(varies, deviation * largest, 1.0), varies


def _resolution(centre: np.ndarray) -> np.ndarray:
    """Below this, a column's variation is rounding error of its own values, or no normal number."""
    return np.maximum(4 * FINITE.eps * np.abs(centre), FINITE.tiny)
