"""One clear error for tables that cannot be learnt from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["require_finite"]


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
