"""The data sets of the comparisons, standardised with their training rows, from a data folder.

The folder holds `uci10/`, `uci20/`, `uci_other/`, `spatial/`, `robots/`, `large/` and `sim/`, NumPy
archives with the keys that the readers below name. `fold` is the test part of `uci10`, the split of
`uci20`, the test trajectory of `kuka_lwr_pickplace`, and the seed of a random 90/10 split elsewhere.
Scores are taken on at most 20,000 of the test rows, drawn with the fold as seed, so that a peer
whose prediction is slow can still be scored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np

from benchmarks.paper.walks import Walks, stored, transitions

__all__ = ["SETS", "TWELVE", "UCI", "Split", "load"]

MOST_TEST_ROWS = 20_000
LARGE = 200_000
"""Inputs of tables with more rows than this are kept in single precision."""
RATE = 100
"""Frames per second of the pick-and-place recordings."""
DAY = 24 * 60
FIRST_WEEKDAY = 0
"""The flights' minute 0 is on a Monday, 2001-01-01."""


class Table(NamedTuple):
    """Raw inputs (N, D), targets (N, P) or (N,), which rows are test rows (None: at random), and groups."""

    X: np.ndarray
    Y: np.ndarray
    test: np.ndarray | None = None
    groups: np.ndarray | None = None


class Split(NamedTuple):
    """Training and test rows; the training rows' groups if the test rows are of groups of their own."""

    X_train: np.ndarray
    y_train: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    groups: np.ndarray | None = None


Archive = Mapping[str, np.ndarray]


def _plain(file: Archive, fold: int) -> Table:
    return Table(file["X"], file["y"])


def _ten_folds(file: Archive, fold: int) -> Table:
    folds = file["fold"]
    if not 0 <= fold <= folds.max():
        raise ValueError(f"fold {fold} does not exist; there are 0 to {folds.max()}")
    return Table(file["X"], file["y"], folds == fold)


def _listed_splits(file: Archive, fold: int) -> Table:
    splits = file["test_idx"]
    if not 0 <= fold < len(splits):
        raise ValueError(f"split {fold} does not exist; there are 0 to {len(splits) - 1}")
    test = np.zeros(len(file["X"]), dtype=bool)
    test[splits[fold]] = True
    return Table(file["X"], file["y"], test)


def _kuka(file: Archive, fold: int) -> Table:
    """Inverse dynamics of the simulated arm: position, velocity, acceleration to seven torques."""
    return Table(stored(file, "X", np.float64), stored(file, "Y", np.float64))


def _pick_and_place(file: Archive, fold: int) -> Table:
    """Inverse dynamics (q, q̇, q̈) to torques of a real arm; one whole trajectory is the test part."""
    trajectory = file["traj"]
    if not 0 <= fold <= trajectory.max():
        raise ValueError(f"trajectory {fold} does not exist; there are 0 to {trajectory.max()}")
    q, qd, tau = file["q"], file["qd"], file["tau"]
    X = np.hstack([q, qd, (file["qd_next"] - qd) * RATE])
    return Table(X, tau, trajectory == fold, trajectory)


def _wind(file: Archive, fold: int) -> Table:
    """A turbine's power from its six other channels, the hour of the day and which turbine it is.

    Rows with a missing value are dropped; sensor faults (-273 degrees and the like) are left in.
    """
    values, columns = file["V"], list(file["columns"])
    turbine = file["turbine"]
    others = [i for i, name in enumerate(columns) if name != "P_avg"]
    angle = (2 * np.pi / DAY) * (file["minute"] % DAY)
    which = turbine[:, None] == np.arange(turbine.max() + 1)
    X = np.column_stack([values[:, others], np.sin(angle), np.cos(angle), which])
    whole = np.isfinite(values).all(1)
    return Table(X[whole].astype(np.float32), values[whole, columns.index("P_avg")])


def _flights(file: Archive, fold: int) -> Table:
    """A flight's delay on arrival from when it left, how far it flew, from where and where to."""
    minute = file["minute"]
    places = file["airport_latlon"]
    time = [minute, minute % DAY, (minute // DAY + FIRST_WEEKDAY) % 7]
    columns = [*time, file["distance"], places[file["origin"]], places[file["dest"]]]
    return Table(np.column_stack([np.asarray(c, np.float32) for c in columns]), file["delay"])


def _walker(file: Archive, fold: int) -> Table:
    """The paper's MUJOCO1: observation and action (23) to the nine velocities of the next frame."""
    walks = Walks(stored(file, "obs"), stored(file, "act"), file["length"].astype(np.int64))
    return Table(*transitions(walks, frames=1))


Reader = Callable[[Archive, int], Table]

UCI10 = (
    "airfoil autompg autos bike breastcancer challenger concrete concreteslump energy fertility "
    "forest gas housing keggdirected keggundirected kin40k machine parkinsons pendulum pol protein "
    "pumadyn32nm servo skillcraft solar stock tamielectric wine yacht"
)
UCI20 = (
    "bostonHousing concrete energy kin8nm naval-propulsion-plant power-plant "
    "protein-tertiary-structure wine-quality-red yacht"
)

TWELVE: dict[str, tuple[str, Reader]] = {
    **{
        name: (f"uci10/{name}", _ten_folds) for name in ("kin40k", "protein", "pol", "keggdirected")
    },
    **{name: (f"uci_other/{name}", _plain) for name in ("california_housing", "house_8l")},
    "kuka_lwr_pickplace": ("robots/kuka_lwr_pickplace", _pick_and_place),
    **{name: (f"spatial/{name}", _plain) for name in ("climate_temperature", "baja_bathymetry")},
    "wind_scada_lhb": ("large/wind_scada_lhb", _wind),
    "flights_2001h1": ("large/flights_2001h1", _flights),
    "walker2d": ("sim/walker2d_trpo", _walker),
}
UCI: dict[str, tuple[str, Reader]] = {
    **{f"uci10/{name}": (f"uci10/{name}", _ten_folds) for name in UCI10.split()},
    **{f"uci20/{name}": (f"uci20/{name}", _listed_splits) for name in UCI20.split()},
}
SETS: dict[str, tuple[str, Reader]] = {**TWELVE, "kuka": ("sim/kuka_iiwa_sim1", _kuka), **UCI}
"""Archive (below the folder, without its ending) and reader of every set."""


def load(name: str, fold: int, folder: Path) -> Split:
    """Return training and test rows in standard deviations; targets are (N, P)."""
    X, Y, test, groups = _read(name, fold, folder)
    Y = Y.astype(np.float64).reshape(len(X), -1)
    if test is None:
        test = np.ones(len(X), dtype=bool)
        test[np.random.default_rng(fold).permutation(len(X))[: int(0.9 * len(X))]] = False
    train, test = np.flatnonzero(~test), np.flatnonzero(test)
    if len(test) > MOST_TEST_ROWS:
        test = np.random.default_rng(fold).choice(test, MOST_TEST_ROWS, replace=False)
    kind = np.float32 if len(X) > LARGE else np.float64
    X_train, X_test = _standardised(X, train, test, kind)
    y_train, y_test = _standardised(Y, train, test, np.float64)
    return Split(X_train, y_train, X_test, y_test, None if groups is None else groups[train])


def _read(name: str, fold: int, folder: Path) -> Table:
    place, reader = SETS[name]
    path = folder / f"{place}.npz"
    if not path.is_file():
        raise FileNotFoundError(
            f"{name}: no file {path}; pass the folder of the data sets as --data"
        )
    try:
        with np.load(path) as file:
            arrays = {key: file[key] for key in file.files}
    except (ValueError, OSError, BadZipFile) as error:
        raise ValueError(f"{name}: {path} is no NumPy archive ({error})") from error
    try:
        return reader(arrays, fold)
    except KeyError as error:
        keys = ", ".join(arrays)
        raise ValueError(f"{name}: {path} has no array {error}; it has {keys}") from error


def _standardised(
    table: np.ndarray, train: np.ndarray, test: np.ndarray, kind: type
) -> tuple[np.ndarray, np.ndarray]:
    """Return training and test rows less the training mean, over the training deviation."""
    train_part: np.ndarray = np.empty((len(train), table.shape[1]), kind)
    test_part: np.ndarray = np.empty((len(test), table.shape[1]), kind)
    for j in range(table.shape[1]):
        column = table[:, j].astype(np.float64)
        mean, scale = column[train].mean(), column[train].std()
        column = (column - mean) / (scale if scale > 0 else 1.0)
        train_part[:, j], test_part[:, j] = column[train], column[test]
    return train_part, test_part
