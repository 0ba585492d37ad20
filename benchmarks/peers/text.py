"""Markdown tables of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

__all__ = ["COLUMNS", "NOT_RUN", "cell", "spread_cell", "table"]

COLUMNS = ("RMSE", "nMSE", "NLL", "50%", "80%", "95%", "width", "seconds", "MB")
NOT_RUN, NONE = "not run", "–"
WHOLE = ("seconds", "MB", "N", "D", "rows", "steps", "trees", "quantile seconds", "warnings", "NaN")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """Return a Markdown table; the first `words` columns are words, the others numbers."""
    rule = ["---"] * words + ["---:"] * (len(heads) - words)
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, rule, *rows))


def cell(result: Mapping[str, Any] | None, column: str) -> str:
    """Return one number of one result."""
    return spread_cell([result], column)


def spread_cell(results: Sequence[Mapping[str, Any] | None], column: str) -> str:
    """Return mean ± standard deviation over results; what failed or was not run is no part of it."""
    there = [result for result in results if result is not None]
    if not there:
        return NOT_RUN
    values = [result[column] for result in there if column in result]
    if not values:
        return NONE
    places = 0 if column in WHOLE else 4
    text = f"{mean(values):,.{places}f}"
    return f"{text} ± {stdev(values):,.{places}f}" if len(values) > 1 else text
