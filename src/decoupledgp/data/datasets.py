"""The data that the package ships or makes: kin40k and the sinc of the paper's figure 1."""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import NamedTuple

import numpy as np

__all__ = ["Split", "load_kin40k", "make_sinc"]


class Split(NamedTuple):
    """A table cut into training and test rows."""

    X_train: np.ndarray
    y_train: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def load_kin40k(fold: int = 0) -> Split:
    """Return kin40k, 8 inputs, 36,000 training and 4,000 test rows; `fold` (0 to 9) is the test part.

    The forward kinematics of an 8-link robot arm (Delve), as collected in the uci_datasets
    repository of T. Evans (MIT licence), whose ten folds these are.
    """
    if not 0 <= fold <= 9:
        raise ValueError(f"kin40k has folds 0 to 9, not {fold}")
    with (
        as_file(files("decoupledgp.data") / "files" / "kin40k.npz") as path,
        np.load(path) as table,
    ):
        X, y, test = table["X"], table["y"].ravel(), table["fold"] == fold
    return Split(X[~test], y[~test], X[test], y[test])


def make_sinc(n: int = 500, noise: float = 0.1, random_state: int = 0) -> Split:
    """Return n noisy observations of sinc(x) = sin(πx)/(πx) on [-5, 5] and a noise-free test grid."""
    rng = np.random.default_rng(random_state)
    x = rng.uniform(-5, 5, (n, 1))
    grid = np.linspace(-5, 5, 501)[:, None]
    return Split(x, np.sinc(x[:, 0]) + noise * rng.standard_normal(n), grid, np.sinc(grid[:, 0]))
