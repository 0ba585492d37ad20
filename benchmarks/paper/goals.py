"""What the experiments are to show, and whether they do; how much results differ from seed to seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.paper.data import SETS, outputs_of
from benchmarks.paper.published import PUBLISHED
from benchmarks.paper.published import SYSTEMS as PAPERS
from benchmarks.paper.results import NOT_RUN, UNITS, Results, number
from benchmarks.paper.systems import SYSTEMS

__all__ = ["Goal", "goals", "seed_rows"]

RATIOS = (
    ("svdgp", "svi", 0.6),
    ("defaults", "svdgp", 0.5),
    ("defaults", "svgp", 0.5),
    ("defaults", "boosting", 1.0),
    ("defaults", "boosting-timed", 1.0),
)
"""A system's mean nMSE is to be at most so much of another's."""

Pair = tuple[int, int]
"""An output and a seed."""

COVERAGE = (0.93, 0.97)
"""Where the share of targets in our 95% intervals is to lie."""


class Goal(NamedTuple):
    """What is asked, what the paper has, what was found over which outputs, and whether that will do."""

    text: str
    paper: str
    found: str
    outputs: str
    met: str

    @classmethod
    def judged(
        cls, text: str, paper: str, found: str, pairs: Sequence[Pair], met: bool | None
    ) -> Goal:
        """Return a goal with its outputs and its verdict in words."""
        numbers = ", ".join(dict.fromkeys(str(output) for output, _ in pairs)) or "–"
        return cls(text, paper, found, numbers, {True: "yes", False: "no", None: "–"}[met])


def goals(results: Results, data: str) -> list[Goal]:
    """Return the goals for a set, each over what all systems in question were run on."""
    ratios = (_ratio(results, data, *ratio) for ratio in RATIOS)
    order = [_lead(results, data, measure) for measure in ("nmse", "bound")]
    return [*order, *ratios, _coverage(results, data, "defaults")]


def seed_rows(results: Results, data: str) -> list[list[str]]:
    """Return per system: outputs with several seeds, how far these differ, the spread over outputs."""
    rows = []
    for system, about in SYSTEMS.items():
        ranges = {
            k: np.ptp([record["nmse"] for record in results.of(data, k, system)])
            for k in outputs_of(data)
            if len({record["seed"] for record in results.of(data, k, system)}) > 1
        }
        if ranges:
            values = results.over_outputs(data, system, "nmse")[0]
            spread = number("nmse", float(np.std(values))) if len(values) > 1 else "–"
            outputs = ", ".join(str(k) for k in ranges)
            rows.append([about.title, outputs, number("nmse", max(ranges.values())), spread])
    return rows


def _common(results: Results, data: str, systems: Sequence[str]) -> list[Pair]:
    """Return the outputs and seeds that all of some systems have: a seed is also a split of the rows."""
    pairs = [
        {(r["output"], r["seed"]) for r in results.records if (r["data"], r["system"]) == (data, s)}
        for s in systems
    ]
    return sorted(set.intersection(*pairs))


def _mean(
    results: Results, data: str, system: str, measure: str, pairs: Sequence[Pair]
) -> float | None:
    """Return the mean over outputs of a measure's mean over seeds, None if there is nothing to take it of."""
    values: dict[int, list[float]] = {}
    for record in results.records:
        wanted = (record["data"], record["system"]) == (data, system)
        wanted = wanted and (record["output"], record["seed"]) in pairs
        if wanted and record.get(measure) is not None:
            values.setdefault(record["output"], []).append(record[measure])
    means = [np.mean(seeds) for seeds in values.values()]
    return float(np.mean(means)) / UNITS.get(measure, 1) if means else None


def _lead(results: Results, data: str, measure: str) -> Goal:
    """Whether SVDGP is ahead of the paper's other systems."""
    pairs, least = _common(results, data, PAPERS), measure == "nmse"
    text = f"SVDGP has the {'lowest nMSE' if least else 'highest bound'} of the five"
    published, paper = SETS[data].published, "–"
    if published:
        means = dict(zip(PAPERS, PUBLISHED[published, measure].mean, strict=True))
        paper = "yes" if _best(means, least) == "svdgp" else "no"
    found = {s: _mean(results, data, s, measure, pairs) for s in PAPERS}
    known = {s: value for s, value in found.items() if value is not None}
    if len(known) < len(PAPERS):
        return Goal.judged(text, paper, NOT_RUN, pairs, None)
    best = _best(known, least)
    here = f"{SYSTEMS[best].title} ({number(measure, known[best])})"
    return Goal.judged(text, paper, here, pairs, best == "svdgp")


def _best(means: dict[str, float], least: bool) -> str:
    return (min if least else max)(means, key=lambda system: means[system])


def _ratio(results: Results, data: str, one: str, other: str, most: float) -> Goal:
    pairs = _common(results, data, (one, other))
    text = f"nMSE of {SYSTEMS[one].title} / {SYSTEMS[other].title} ≤ {most:g}"
    published, paper = SETS[data].published, "–"
    if published and one in PAPERS and other in PAPERS:
        mean = PUBLISHED[published, "nmse"].mean
        paper = f"{mean[PAPERS.index(one)] / mean[PAPERS.index(other)]:.2f}"
    above, below = (_mean(results, data, system, "nmse", pairs) for system in (one, other))
    if above is None or below is None:
        return Goal.judged(text, paper, NOT_RUN, pairs, None)
    return Goal.judged(text, paper, f"{above / below:.3f}", pairs, above / below <= most)


def _coverage(results: Results, data: str, system: str) -> Goal:
    pairs, (low, high) = _common(results, data, (system,)), COVERAGE
    text = f"95% intervals of {SYSTEMS[system].title} cover {low:.0%} to {high:.0%} on average"
    mean = _mean(results, data, system, "coverage", pairs)
    if mean is None:
        return Goal.judged(text, "–", NOT_RUN, pairs, None)
    return Goal.judged(text, "–", number("coverage", mean), pairs, low <= mean <= high)
