"""Pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from decoupledgp.data import Split

__all__ = ["Panel", "draw_panels"]


class Panel(NamedTuple):
    """One model's predictions on a grid."""

    title: str
    mean: np.ndarray
    std: np.ndarray


def draw_panels(split: Split, panels: Sequence[Panel], path: Path) -> None:
    """Draw the paper's figure 1: truth (red), observations (blue), mean (black), ±2 std (grey)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(panels), 3.2), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    x = split.X_test[:, 0]
    for axis, panel in zip(axes, panels, strict=True):
        axis.plot(split.X_train[:, 0], split.y_train, "o", ms=2.5, mfc="none", color="tab:blue")
        low, high = panel.mean - 2 * panel.std, panel.mean + 2 * panel.std
        axis.fill_between(x, low, high, color="0.6", alpha=0.5, lw=0)
        axis.plot(x, split.y_test, color="tab:red", lw=1.5)
        axis.plot(x, panel.mean, color="black", lw=1.5)
        axis.set_title(panel.title, fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
