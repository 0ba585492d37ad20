"""The data sets of the comparisons, standardised with their training rows, from a data folder.

The folder holds `uci10/`, `uci_other/`, `spatial/` and `sim/` archives with the keys that `load` reads.
`uci10` sets have folds; the others are split 90/10 by a seed, which `fold` then is.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from decoupledgp.data import Split

__all__ = ["SETS", "load"]

SETS = {
    **{name: f"uci10/{name}" for name in ("kin40k", "protein", "pol", "keggdirected")},
    **{name: f"uci_other/{name}" for name in ("california_housing", "house_8l")},
    **{name: f"spatial/{name}" for name in ("climate_temperature", "baja_bathymetry")},
    "kuka": "sim/kuka_iiwa_sim1",
}


def load(name: str, fold: int, folder: Path) -> Split:
    """Return training and test rows in standard deviations; targets are (N, P)."""
    with np.load(folder / f"{SETS[name]}.npz") as file:
        if "fold" in file:
            X, Y, test = file["X"], file["y"], file["fold"] == fold
        else:
            X = _table(file, "X")
            Y = _table(file, "Y" if "Y_q" in file else "y")
            test = np.ones(len(X), dtype=bool)
            test[np.random.default_rng(fold).permutation(len(X))[: int(0.9 * len(X))]] = False
    X, Y = X.astype(float), Y.astype(float).reshape(len(X), -1)
    return Split(*(part[rows] for rows in (~test, test) for part in _standardised(X, Y, ~test)))


def _table(file: np.lib.npyio.NpzFile, name: str) -> np.ndarray:
    """Return an array, also one that is stored in 16 bits."""
    if name in file:
        return file[name]
    return file[f"{name}_lo"] + file[f"{name}_step"] * file[f"{name}_q"].astype(float)


def _standardised(X: np.ndarray, Y: np.ndarray, train: np.ndarray) -> list[np.ndarray]:
    tables = []
    for table in (X, Y):
        scale = table[train].std(0)
        tables.append((table - table[train].mean(0)) / np.where(scale > 0, scale, 1))
    return tables
