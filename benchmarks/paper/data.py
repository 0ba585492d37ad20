"""The data sets of the paper's experiments, or what stands in for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.paper.kuka_files import load_kuka_files
from benchmarks.paper.walks import load_walks, stored, transitions
from decoupledgp.data import Split

__all__ = ["SETS", "DataSet", "Sources", "load", "outputs_of", "split_rows"]

WALKS, ARM = "sim/walker2d_trpo.npz", "sim/kuka_iiwa_sim1.npz"


@dataclass(frozen=True)
class DataSet:
    """What a set is, and which of the paper's stands beside it."""

    title: str
    n_outputs: int
    origin: str
    published: str | None = None
    """Name of the paper's set whose numbers may stand beside ours."""


SETS = {
    "mujoco1": DataSet(
        "MUJOCO1",
        9,
        "simulated: walking trajectories gathered anew, as the paper did, with another policy",
        "mujoco1",
    ),
    "mujoco2": DataSet(
        "MUJOCO2",
        9,
        "simulated: the same trajectories, two frames as input",
        "mujoco2",
    ),
    "mujoco1-change": DataSet(
        "MUJOCO1, change of velocity",
        9,
        "simulated: the same trajectories; the target, not the paper's, is the change of velocity",
    ),
    "kuka": DataSet(
        "KUKA, simulated",
        7,
        "simulated: a seven-joint arm with friction stands in for KUKA1; these are not the paper's data",
        "kuka1",
    ),
    "kuka1": DataSet("KUKA1", 7, "recorded: the published files of the paper's data", "kuka1"),
    "kuka2": DataSet("KUKA2", 7, "recorded: the published files of the paper's data", "kuka2"),
}
"""The published KUKA sets need the files themselves (`--kuka1`, `--kuka2`)."""


@dataclass(frozen=True)
class Sources:
    """Where the files are."""

    folder: Path
    kuka1: Path | None = None
    kuka2: Path | None = None

    def has(self, name: str) -> bool:
        """Whether a set can be loaded."""
        if name in ("kuka1", "kuka2"):
            return getattr(self, name) is not None
        return (self.folder / (ARM if name == "kuka" else WALKS)).exists()


def outputs_of(name: str) -> range:
    """Return the numbers of a set's outputs, from 1 as in the paper."""
    return range(1, SETS[name].n_outputs + 1)


def load(name: str, seed: int, sources: Sources, max_rows: int | None = None) -> Split:
    """Return training and test rows, inputs and targets in standard deviations of the training rows."""
    X, Y = _table(name, sources)
    train, test = split_rows(len(X), seed, max_rows)
    parts = []
    for table in (X, Y):
        mean, scale = table[train].mean(0, dtype=float), table[train].std(0, dtype=float)
        scale = np.where(scale > 0, scale, 1)
        parts.append([(table[rows] - mean) / scale for rows in (train, test)])
    (X_train, X_test), (y_train, y_test) = parts
    return Split(X_train, y_train, X_test, y_test)


def split_rows(n: int, seed: int, max_rows: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows to learn from and to test with, 90 to 10, in the order of a seed's permutation."""
    order = np.random.default_rng(seed).permutation(n)[:max_rows]
    cut = int(0.9 * len(order))
    return order[:cut], order[cut:]


def _table(name: str, sources: Sources) -> tuple[np.ndarray, np.ndarray]:
    """Return all rows of a set as they are stored."""
    if name in ("kuka1", "kuka2"):
        path = getattr(sources, name)
        if path is None:
            raise FileNotFoundError(
                f"{name} needs the published files: give their folder with --{name}"
            )
        return load_kuka_files(path)
    if not sources.has(name):
        script = "kuka" if name == "kuka" else "walker2d"
        raise FileNotFoundError(
            f"{sources.folder} has no {ARM if name == 'kuka' else WALKS}; make it with "
            f"`python -m benchmarks.generate.{script}` and give `--data out/data`"
        )
    if name == "kuka":
        with np.load(sources.folder / ARM) as file:
            return stored(file, "X"), stored(file, "Y")
    walks = load_walks(sources.folder / WALKS)
    return transitions(walks, 2 if name == "mujoco2" else 1, change=name == "mujoco1-change")
