"""Rows in the order they are learnt from."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

__all__ = ["consecutive_batches", "shuffled_batches"]


def shuffled_batches(
    n_rows: int, batch_size: int, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Yield minibatches of row numbers for ever, all of the same size min(batch_size, n_rows).

    They are cut from one permutation after another, so each row comes once per pass and no batch is
    a small remainder whose gradient would be scaled up.
    """
    size = min(batch_size, n_rows)
    left = np.empty(0, dtype=np.int64)
    while True:
        if len(left) < size:
            again = rng.permutation(n_rows)
            waiting = np.isin(again, left)  # come last in the new pass: no batch has a row twice
            left = np.concatenate([left, again[~waiting], again[waiting]])
        yield left[:size]
        left = left[size:]


def consecutive_batches(n_rows: int, batch_size: int) -> list[slice]:
    """Cut rows that came together into nearly equal parts of at most batch_size, in their order."""
    parts = -(-n_rows // batch_size)
    edges = np.linspace(0, n_rows, parts + 1).astype(int)
    return [slice(int(a), int(b)) for a, b in pairwise(edges)]
