"""From walking trajectories to the regressions MUJOCO1 and MUJOCO2."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

__all__ = ["Walks", "load_walks", "stored", "transitions"]

POSITIONS = 8
"""Columns of an observation that are positions; the rest are the velocities to predict."""


class Walks(NamedTuple):
    """Trajectories one after the other: `length[i] + 1` observations and `length[i]` actions each."""

    obs: np.ndarray
    act: np.ndarray
    length: np.ndarray


def load_walks(path: Path) -> Walks:
    """Read a file that `benchmarks.generate.walker2d` writes, also with its tables in 16 bits."""
    with np.load(path) as file:
        walks = Walks(stored(file, "obs"), stored(file, "act"), file["length"].astype(np.int64))
    frames = int(walks.length.sum())
    if len(walks.act) != frames or len(walks.obs) != frames + len(walks.length):
        raise ValueError(
            f"{path}: the lengths add up to {frames:,} frames of {len(walks.length):,} trajectories, "
            f"but there are {len(walks.act):,} actions and {len(walks.obs):,} observations"
        )
    return walks


def stored(file: Mapping[str, np.ndarray], name: str, kind: type = np.float32) -> np.ndarray:
    """Return an array of a file, also one that is stored as `lo + step * q` per column."""
    if name in file:
        return file[name].astype(kind)
    lo, step, codes = (file[f"{name}_{part}"] for part in ("lo", "step", "q"))
    table: np.ndarray = np.empty(codes.shape, kind)
    for column in range(codes.shape[1]):  # of few numbers in double precision at once
        table[:, column] = lo[column] + step[column] * codes[:, column]
    return table


def transitions(walks: Walks, frames: int, change: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and the nine velocities of the next frame, or their change.

    `frames` is 1 for MUJOCO1 (observation and action, 23 inputs) and 2 for MUJOCO2 (those of the
    present frame, then of the one before, 46 inputs). No row reaches beyond its trajectory: with
    two frames the first of every trajectory has none before it and is left out.
    """
    if frames not in (1, 2):
        raise ValueError(f"frames must be 1 (MUJOCO1) or 2 (MUJOCO2). Got {frames!r}")
    length = walks.length
    step = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
    now = np.arange(length.sum()) + np.repeat(np.arange(len(length)), length)  # rows of obs
    inside = step >= frames - 1
    now, action = now[inside], np.flatnonzero(inside)
    X = np.hstack(
        [
            part
            for back in range(frames)
            for part in (walks.obs[now - back], walks.act[action - back])
        ]
    )
    Y = walks.obs[now + 1, POSITIONS:]
    return X, Y - walks.obs[now, POSITIONS:] if change else Y
