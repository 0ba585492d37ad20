"""The defaults with nothing set, held against fixed goals and the time of 150 steps of SVGP.

The seconds of 150 Adam steps of GPyTorch's SVGP with 1,024 inducing points are five times those of 30
steps, after three that do not count; all three rows of a set come from the same run of this benchmark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import gps
from benchmarks.peers.measure import apart, boosting_by_default, by_default, svgp_steps
from benchmarks.peers.text import COLUMNS, cell, table
from benchmarks.store import Key, Result, Store

__all__ = ["SETS", "defaults_table", "goals", "run_defaults"]

SETS = ("kin40k", "protein", "kuka")
FOLD = 0
GOALS: dict[str, dict[str, float]] = {
    "kin40k": {"RMSE": 0.105, "NLL": -0.80},
    "protein": {"RMSE": 0.542, "NLL": 0.82},
    "kuka": {},
}
"""The most that each score may be; on the arm the nMSE is to be below gradient boosting's."""
COVERAGE = (0.93, 0.97)
MOST_MEGABYTES = 1500

OURS, STEPS, BOOSTING = "DecoupledGPRegressor()", "svgp-steps", "HistGradientBoostingRegressor()"
MODELS: dict[str, Callable[..., dict[str, Any]]] = {
    OURS: by_default,
    STEPS: svgp_steps,
    BOOSTING: boosting_by_default,
}
TITLES = {STEPS: "GPyTorch SVGP-1024: 150 Adam steps (5 × 30)"}


def run_defaults(store: Store, sets: Sequence[str], folder: Path) -> None:
    """Run what the store does not have yet."""
    for name in sets:
        for model, function in MODELS.items():
            key = _key(name, model)
            if key not in store:
                store.add(key, apart(function, name, FOLD, folder))
                print(f"defaults, {name}, {model}: {store.get(key)}", flush=True)


def defaults_table(store: Store, sets: Sequence[str]) -> str:
    """Return the table of scores and the list of goals, met or missed."""
    rows, verdicts = [], []
    for name in sets:
        results = {model: store.get(_key(name, model)) for model in MODELS}
        for model, result in results.items():
            cells = [cell(result, column) for column in COLUMNS]
            rows.append([name, TITLES.get(model, model), *cells])
        for goal, met in goals(name, *results.values()):
            verdicts.append([name, goal, {True: "met", False: "**missed**", None: "not run"}[met]])
    scores = table(["set", "model", *COLUMNS], rows, words=2)
    return (
        f"## Defaults, fold {FOLD}\n\n{scores}\n\n{table(['set', 'goal', ''], verdicts, words=3)}\n"
    )


def goals(
    name: str, ours: Result | None, steps: Result | None, boosting: Result | None
) -> Iterator[tuple[str, bool | None]]:
    """Yield each goal in words and whether it was met (None: something was not run)."""
    mine, steps, boosting = ours or {}, steps or {}, boosting or {}
    for score, most in GOALS[name].items():
        yield f"{score} ≤ {most}", _at_most(mine.get(score), most)
    if name == "kuka":
        yield "mean nMSE below gradient boosting's", _below(mine.get("nMSE"), boosting.get("nMSE"))
    low, high = COVERAGE
    covered = mine.get("95%")
    yield (
        f"95% coverage within {low} to {high}",
        None if covered is None else low <= covered <= high,
    )
    yield (
        "seconds ≤ 150 Adam steps of SVGP-1024",
        _at_most(mine.get("seconds"), steps.get("seconds")),
    )
    yield f"peak memory ≤ {MOST_MEGABYTES:,} MB", _at_most(mine.get("MB"), MOST_MEGABYTES)


def _key(name: str, model: str) -> Key:
    settings = str(tuple(gps.SVGP)) if model == STEPS else "defaults"
    return {"set": name, "fold": FOLD, "peer": model, "settings": settings}


def _at_most(value: float | None, most: float | None) -> bool | None:
    return None if value is None or most is None else value <= most


def _below(value: float | None, other: float | None) -> bool | None:
    return None if value is None or other is None else value < other
