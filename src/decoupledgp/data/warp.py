"""Skewed columns made even: the power transform of Yeo & Johnson (2000).

Distances between rows of a long-tailed column (incomes, counts, prices) are ruled by the few rows in
the tail. A power between logarithm and square brings such a column near a normal distribution, and one
length-scale can serve all of it.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

__all__ = ["Warp"]

SKEWED = 1.0
"""Columns with a skewness below this stay as they are."""

FEWEST_VALUES = 10
"""Columns with fewer different values stay as they are: they are labels rather than sizes."""

POWERS = np.linspace(-4.0, 4.0, 81)
"""Powers that are tried; one is the identity."""

MOST_ROWS = 10_000
"""Rows that a power is chosen by."""


class Warp:
    """A power for each standardised column, and centre and scale of what it makes of it."""

    def __init__(
        self,
        powers: Float[np.ndarray, " d"],
        centre: Float[np.ndarray, " d"],
        scale: Float[np.ndarray, " d"],
    ):
        self.powers, self.centre, self.scale = powers, centre, scale

    @classmethod
    def fit(cls, Z: Float[np.ndarray, "n d"], rng: np.random.Generator) -> Warp | None:
        """Return powers under which skewed columns are most nearly normal; None if none is skewed."""
        if len(Z) > MOST_ROWS:
            Z = Z[rng.choice(len(Z), MOST_ROWS, replace=False)]
        powers = np.array([_power(column) for column in Z.T])
        if (powers == 1).all():
            return None
        warped = _transform(Z, powers)
        centre, scale = np.zeros(len(powers)), np.ones(len(powers))
        changed = powers != 1
        centre[changed] = warped[:, changed].mean(0)
        scale[changed] = warped[:, changed].std(0)
        return cls(powers, centre, scale)

    def __call__(self, Z: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Return the columns transformed and standardised again."""
        return (_transform(Z, self.powers) - self.centre) / self.scale


def _transform(Z: np.ndarray, powers: np.ndarray) -> np.ndarray:
    """Yeo & Johnson's transform: monotone, zero at zero, with slope one there."""
    out = Z.copy()
    for d in np.flatnonzero(powers != 1):
        out[:, d] = _one(Z[:, d], powers[d])
    return out


def _one(z: np.ndarray, power: float) -> np.ndarray:
    right = _box_cox(np.maximum(z, 0), power)
    left = _box_cox(np.maximum(-z, 0), 2 - power)
    return np.where(z >= 0, right, -left)


def _box_cox(z: np.ndarray, power: float) -> np.ndarray:
    """((1 + z)^power - 1) / power, log(1 + z) at zero; for z not negative."""
    if abs(power) < 1e-8:
        return np.log1p(z)
    return np.expm1(power * np.log1p(z)) / power


def _power(z: np.ndarray) -> float:
    """Return the power under which a standardised column is most likely a normal sample, or one."""
    deviation = z.std()
    if deviation == 0 or len(np.unique(z)) < FEWEST_VALUES:
        return 1.0
    if abs(np.mean(((z - z.mean()) / deviation) ** 3)) < SKEWED:
        return 1.0
    jacobian = np.sum(np.sign(z) * np.log1p(np.abs(z)))
    spread = np.array([_one(z, power).var() for power in POWERS])
    score = (POWERS - 1) * jacobian - 0.5 * len(z) * np.log(np.maximum(spread, 1e-300))
    return float(POWERS[int(np.argmax(score))])
