"""One clear error for tables that cannot be learnt from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["require_finite", "require_groups", "require_row_numbers"]


def require_finite(
    table: np.ndarray, what: str, names: Sequence[str] | np.ndarray | None = None
) -> None:
    """Raise a ValueError that names the first column with NaN or infinite values, and the row."""
    with np.errstate(all="ignore"):
        if np.isfinite(table.sum()):  # NaN and infinity survive a sum: one pass clears good tables
            return
    finite = np.isfinite(table)
    if finite.all():
        return
    columns = finite.reshape(len(table), -1)
    bad = int(np.flatnonzero(~columns.all(0))[0])
    rows = np.flatnonzero(~columns[:, bad])
    name = f"column {names[bad]!r}" if names is not None else f"column {bad}"
    kind = "NaN" if np.isnan(table.reshape(len(table), -1)[rows[0], bad]) else "infinity (inf)"
    raise ValueError(
        f"{what} contains {kind}: {name} has {len(rows)} missing or infinite values "
        f"(first at row {rows[0]}); drop those rows or fill them in"
    )


def require_row_numbers(
    values: Any, what: str, *shapes: tuple[int, ...], positive: bool = False
) -> np.ndarray:
    """Return finite numbers in one of these shapes that are not negative (or zero), or raise a ValueError."""
    table = np.asarray(values)
    if table.dtype.kind not in "fiub" or table.shape not in shapes:
        wanted = " or ".join(map(str, shapes))
        raise ValueError(
            f"{what} must be numbers of shape {wanted}, one per row; "
            f"got {table.dtype} of shape {table.shape}"
        )
    table = table.astype(np.float64)
    require_finite(table, what)
    bad = np.argwhere(table <= 0 if positive else table < 0)
    if len(bad):
        row = bad[0][0]
        wrong = "must be positive" if positive else "must not be negative"
        raise ValueError(f"{what} {wrong}; row {row} has {table[tuple(bad[0])]:g}")
    return table


def require_groups(values: Any, n_rows: int) -> np.ndarray:
    """Return a number per row, the same for rows of the same group, or raise a ValueError."""
    table = np.asarray(values)
    if table.shape != (n_rows,):
        raise ValueError(
            f"groups must have an entry per row, shape ({n_rows},); got shape {table.shape}"
        )
    if table.dtype.kind == "f":
        require_finite(table, "groups")
    try:
        names, numbers = np.unique(table, return_inverse=True)
    except TypeError as error:
        raise ValueError(f"groups must be all numbers or all strings ({error})") from error
    if len(names) < 2:
        raise ValueError("groups must have at least two different entries")
    return numbers
