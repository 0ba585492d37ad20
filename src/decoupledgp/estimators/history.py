"""The record of a run: every step at first, ever fewer of them on an endless stream."""

from __future__ import annotations

from typing import Any

__all__ = ["append_thinned"]

LONGEST = 4096


def append_thinned(history: list[dict[str, Any]], record: dict[str, Any]) -> bool:
    """Append a record unless the history is being thinned; return whether it was appended.

    The first 4,096 steps are all kept. After that every other record is dropped whenever the list
    is full, and new ones come at the spacing of those that are left, so the list stays bounded and
    covers the whole run evenly.
    """
    if len(history) >= LONGEST:
        del history[1::2]
    spacing = history[1]["iteration"] - history[0]["iteration"] if len(history) > 1 else 1
    if history and record["iteration"] < history[-1]["iteration"] + spacing:
        return False
    history.append(record)
    return True
