"""What is kept of the rows: where the mean's functions sit, and the target and weight of each.

While there is room every row is a cell of its own. Later rows join the nearest cell: a row whose
target differs from the present mean by r at its own place says that the mean should be r higher at
the cell's centre. So nothing is lost but where exactly in its cell a row was.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["Cells", "nearby", "nearest"]

ROWS_AT_ONCE = 1024

SMALLEST_COUNT = 1e-12
"""However much it fades, no cell counts for less."""


class Cells:
    """Centres, targets and known noise variances in the rows' own units, weights and numbers of rows.

    A cell's noise has the variance (σ² + known) / count; `counts` are sums of weights, `rows` how many
    rows they are of. Memory O(M_α (D + P)).
    """

    def __init__(self, n_features: int, n_outputs: int):
        self.centres = np.zeros((0, n_features))
        self.targets = np.zeros((0, n_outputs))
        self.counts, self.rows = np.zeros(0), np.zeros(0)
        self.known = np.zeros((0, n_outputs))

    def __len__(self) -> int:
        return len(self.counts)

    def append(
        self,
        X: Float[np.ndarray, "n d"],
        Y: Float[np.ndarray, "n p"],
        weights: Float[np.ndarray, " n"],
        known: Float[np.ndarray, "n p"],
    ) -> None:
        """Give every row a cell of its own."""
        self.centres = np.concatenate([self.centres, X])
        self.targets = np.concatenate([self.targets, Y])
        self.counts = np.concatenate([self.counts, weights])
        self.rows = np.concatenate([self.rows, np.ones(len(X))])
        self.known = np.concatenate([self.known, known])

    def join(
        self,
        index: Int[np.ndarray, " n"],
        Y: Float[np.ndarray, "n p"],
        weights: Float[np.ndarray, " n"],
        known: Float[np.ndarray, "n p"],
        learnt: Float[np.ndarray, " p"],
    ) -> None:
        """Average targets into the cells that the index names, by precision; `learnt` is σ²."""
        precision = self.counts[:, None] / (learnt + self.known)
        sums, added = self.targets * precision, weights[:, None] / (learnt + known)
        np.add.at(sums, index, added * Y)
        np.add.at(precision, index, added)
        self.counts = self.counts + np.bincount(index, weights, minlength=len(self))
        self.rows = self.rows + np.bincount(index, minlength=len(self))
        self.targets = sums / precision
        touched = np.unique(index)
        self.known = self.known.copy()
        self.known[touched] = np.maximum(
            self.counts[touched, None] / precision[touched] - learnt, 0
        )

    def keep(self, index: Int[np.ndarray, " k"]) -> None:
        """Drop all other cells."""
        self.centres, self.targets = self.centres[index], self.targets[index]
        self.counts, self.known = self.counts[index], self.known[index]
        self.rows = self.rows[index]

    def fade(self, share: float) -> None:
        """Let the past count for less."""
        self.counts = np.maximum(self.counts * share, SMALLEST_COUNT)
        self.rows = self.rows * share

    def clear(self) -> None:
        """Forget all rows of all cells, and keep the centres."""
        self.counts, self.rows = np.zeros(len(self)), np.zeros(len(self))


def nearest(
    x: Float[np.ndarray, "n d"], centres: Float[np.ndarray, "m d"]
) -> Int[np.ndarray, " n"]:
    """Return the nearest centre of each row. Time O(n m D), memory O(m)."""
    middle = centres.mean(0)
    centres = np.ascontiguousarray((centres - middle).T)
    halves = 0.5 * np.square(centres).sum(0)
    out = np.empty(len(x), dtype=np.int64)
    for start in range(0, len(x), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        out[part] = ((x[part] - middle) @ centres - halves).argmax(1)
    return out


def nearby(
    some: Float[Tensor, "k d"], places: Float[Tensor, "m d"], count: int
) -> Int[np.ndarray, " n"]:
    """Return which places are among the `count` nearest of some. Time O(k m D), memory O(k m)."""
    distance = torch.cdist(some, places, compute_mode="donot_use_mm_for_euclid_dist")
    near = torch.topk(distance, min(count, len(places)), largest=False).indices
    return np.unique(near.cpu().numpy())
