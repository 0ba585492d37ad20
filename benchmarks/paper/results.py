"""Results by set, output, system and measure: means over seeds, ready for tables."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from benchmarks.paper.data import SETS, outputs_of
from benchmarks.paper.protocol import PROTOCOLS
from benchmarks.paper.published import PUBLISHED
from benchmarks.paper.published import SYSTEMS as PUBLISHED_SYSTEMS

__all__ = [
    "NOT_RUN",
    "UNITS",
    "Results",
    "as_printed",
    "number",
    "published_cell",
    "published_statistics",
    "published_summary",
]

NOT_RUN = "not run"
UNITS = {"bound": 1e5}
"""The paper prints bounds in 10⁵."""
DIGITS = {"nmse": 4, "bound": 3, "nll": 3, "coverage": 3, "seconds": 1, "rate": 3}


CONSTANT = 0.5 * math.log(2 * math.pi)
"""What the paper's bounds seem to leave out of a Gaussian's log-density: with it 137 of its 160 are higher
than any Gaussian of its nMSE could have (targets of variance 1), without it none."""


def as_printed(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with its bounds, the curve's and those of the choice (`rates`), less the constant.

    What batch systems chose by (`objectives`) is of their rows alone and stays as it is.
    """
    more = record["n_train"] * CONSTANT
    record = dict(record)
    if record.get("bound") is not None:
        record["bound"] += more
    if "rates" in record:
        record["rates"] = {
            begin: None if bound is None else bound + more
            for begin, bound in record["rates"].items()
        }
    if "curve" in record:
        record["curve"] = [{**point, "bound": point["bound"] + more} for point in record["curve"]]
    return record


def number(measure: str, value: float | None) -> str:
    """Return a value of a measure as it is printed."""
    if value is None or not np.isfinite(value):
        return "–"
    return f"{value:,.{DIGITS[measure]}f}"


class Results:
    """The records of one protocol, bounds as the paper prints them (`as_printed`)."""

    def __init__(self, records: Iterable[dict[str, Any]], size: str):
        self.records = [as_printed(record) for record in records if record["size"] == size]
        self.systems = {*PROTOCOLS[size].systems, *(record["system"] for record in self.records)}

    @property
    def sets(self) -> list[str]:
        """The sets that have results, in the order of `SETS`."""
        return [name for name in SETS if any(record["data"] == name for record in self.records)]

    def of(self, data: str, output: int, system: str) -> list[dict[str, Any]]:
        """Return the records of all seeds."""
        return [
            record
            for record in self.records
            if (record["data"], record["output"], record["system"]) == (data, output, system)
        ]

    def value(self, data: str, output: int, system: str, measure: str) -> float | None:
        """Return the mean over seeds in the paper's units; None if there is none."""
        values = [
            record[measure]
            for record in self.of(data, output, system)
            if record.get(measure) is not None
        ]
        return float(np.mean(values)) / UNITS.get(measure, 1) if values else None

    def ran(self, data: str, output: int, system: str) -> bool:
        """Whether there is a result at all."""
        return bool(self.of(data, output, system))

    def over_outputs(self, data: str, system: str, measure: str) -> tuple[list[float], int]:
        """Return the values of all outputs that have one, and how many outputs were run."""
        outputs = [k for k in outputs_of(data) if self.ran(data, k, system)]
        values = [self.value(data, k, system, measure) for k in outputs]
        return [value for value in values if value is not None], len(outputs)

    def cell(self, data: str, output: int, system: str, measure: str) -> str:
        """Return a printed value; "not run" where nothing was, "–" where the system has none."""
        if not self.ran(data, output, system):
            return NOT_RUN
        return number(measure, self.value(data, output, system, measure))

    def summary(self, data: str, system: str, measure: str) -> str:
        """Return mean ± standard deviation over outputs, as the paper's table 2 has them."""
        values, ran = self.over_outputs(data, system, measure)
        if not ran:
            return NOT_RUN
        if not values:
            return "–"
        mean = number(measure, float(np.mean(values)))
        return f"{mean} ± {number(measure, float(np.std(values)))}" if len(values) > 1 else mean

    def curve(self, data: str, output: int, system: str) -> list[dict[str, float]]:
        """Return the checkpoints of the first seed."""
        records = self.of(data, output, system)
        return min(records, key=lambda record: record["seed"]).get("curve", []) if records else []


def published_cell(data: str, output: int, system: str, measure: str) -> str:
    """Return the paper's number for a set of ours, or "–" if it has none."""
    name = SETS[data].published
    if name is None or system not in PUBLISHED_SYSTEMS:
        return "–"
    return f"{PUBLISHED[name, measure].of(system, output):.3f}"


def published_statistics(data: str, system: str, measure: str) -> tuple[str, str]:
    """Return the paper's mean and standard deviation over all outputs."""
    name = SETS[data].published
    if name is None or system not in PUBLISHED_SYSTEMS:
        return "–", "–"
    table, column = PUBLISHED[name, measure], PUBLISHED_SYSTEMS.index(system)
    return f"{table.mean[column]:,.3f}", f"{table.std[column]:,.3f}"


def published_summary(data: str, system: str, measure: str) -> str:
    """Return both in one cell."""
    mean, std = published_statistics(data, system, measure)
    return mean if mean == "–" else f"{mean} ± {std}"
