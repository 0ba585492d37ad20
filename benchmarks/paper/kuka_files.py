"""The published KUKA1 and KUKA2 (Meier et al. 2014; GitHub fmeier/kuka-data), for those who have them.

Text with 28 columns: 7 positions, 7 velocities, 7 accelerations, then 7 torques. The files are not
shipped with this project, and nothing here makes up for them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

__all__ = ["load_kuka_files"]

INPUTS, TORQUES = 21, 7
ENDINGS = (".txt", ".csv", ".txt.gz", ".csv.gz")


def load_kuka_files(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs (n, 21) and torques (n, 7) from one file, or from all of a folder, by name.

    Columns are separated by spaces, or by commas in a `.csv`; lines beginning with # are skipped.
    """
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.name.endswith(ENDINGS))
        if not files:
            raise FileNotFoundError(f"{path} has no file that ends in {', '.join(ENDINGS)}")
    elif path.is_file():
        files = [path]
    else:
        raise FileNotFoundError(f"{path} is neither a file nor a folder")
    table = np.concatenate([_read(file) for file in files])
    return table[:, :INPUTS], table[:, INPUTS:]


def _read(path: Path) -> np.ndarray:
    """Return the 28 columns of one file."""
    comma = path.name.endswith((".csv", ".csv.gz")) and _has_comma(path)
    try:
        table = np.loadtxt(path, delimiter="," if comma else None, ndmin=2)
    except ValueError as error:
        raise ValueError(f"{path} is not a table of numbers: {error}") from error
    if table.shape[1] != INPUTS + TORQUES:
        raise ValueError(
            f"{path} has {table.shape[1]} columns; the published files have 28: 21 inputs "
            "(positions, velocities, accelerations of 7 joints), then 7 torques"
        )
    bad = ~np.isfinite(table).all(1)
    if bad.any():
        raise ValueError(
            f"{path} has {bad.sum()} rows with values that are missing or infinite "
            f"(first at row {bad.argmax()}, counted from 0); leave them out"
        )
    return table


def _has_comma(path: Path) -> bool:
    """Whether the first line with numbers is separated by commas."""
    import gzip

    with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as file:
        return "," in next((line for line in file if line[0] not in "#\n"), "")
