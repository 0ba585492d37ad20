"""The comparison at equal time as Markdown: a table per set and multiple, and who is ahead where."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import NamedTuple

from benchmarks.peers.families import OURS, PEERS
from benchmarks.peers.text import COLUMNS, NOT_RUN, spread_cell, table
from benchmarks.store import Key, Result, Store

__all__ = ["Plan", "ahead", "equal_time_tables", "key_of", "summary"]

SVGPS = ("svgp", "svgp-natural")
MORE = 5.0


class Plan(NamedTuple):
    """What is to be run."""

    sets: Sequence[str]
    peers: Sequence[str]
    folds: Sequence[int]
    seconds: float
    times: Sequence[float]


def key_of(plan: Plan, peer: str, name: str, fold: int, times: float) -> Key:
    """Return what a result is known by."""
    settings = PEERS[peer].settings
    parts = {"set": name, "fold": fold, "peer": peer, "settings": settings}
    return {**parts, "seconds": float(plan.seconds), "times": float(times)}


def equal_time_tables(store: Store, plan: Plan) -> str:
    """Return a table per set and multiple of our time."""
    parts = []
    for name in plan.sets:
        for times in sorted(plan.times):
            rows, notes = [], []
            for peer in plan.peers:
                results = _results(store, plan, peer, name, times)
                title = PEERS[peer].title + (" (1×)" if peer == OURS and times != 1 else "")
                rows.append([title, *(spread_cell(results, column) for column in COLUMNS)])
                notes += _notes(title, results, len(plan.folds))
            head = f"## {name}, {times:g}× our time{_sizes(store, plan, name)}"
            notes = ["\n".join(f"- {note}" for note in notes)] if notes else []
            parts.append("\n\n".join([head, table(["model", *COLUMNS], rows), *notes]))
    return "\n\n".join(parts) + "\n"


def summary(store: Store, plan: Plan) -> str:
    """Return who is ahead on every set, and the counts, for the multiples of our time in the plan."""
    parts = []
    if 1 in plan.times:
        parts.append(_equal_time(store, plan))
    if MORE in plan.times:
        parts.append(_more_time(store, plan))
    return "\n\n".join(parts) + "\n"


def _equal_time(store: Store, plan: Plan) -> str:
    others = [peer for peer in plan.peers if PEERS[peer].kind == "gp" and peer != OURS]
    heads = ["set", "RMSE, ours", "best other GP", "NLL, ours", "best other GP", "ours ahead"]
    rows, verdicts = [], []
    for name in plan.sets:
        leads, wins = ahead(store, plan, name, others, 1), _trees_win(store, plan, name, 1)
        rows.append([name])
        for score in ("RMSE", "NLL"):
            rows[-1].append(_shown(store, plan, name, [OURS], score, 1, bare=True))
            rows[-1].append(_shown(store, plan, name, others, score, 1))
        rows[-1] += [_word(leads), _shown(store, plan, name, _trees(plan), "RMSE", 1), _word(wins)]
        verdicts.append((leads, wins))
    texts = (
        "ours ahead of every other GP in RMSE and NLL at equal time",
        "trees ahead of ours in RMSE at equal time",
    )
    return _with_counts(
        "## At equal time", [*heads, "best trees, RMSE", "trees win"], rows, texts, verdicts
    )


def _more_time(store: Store, plan: Plan) -> str:
    svgps = [peer for peer in plan.peers if peer in SVGPS]
    others = [
        peer for peer in plan.peers if PEERS[peer].kind == "gp" and peer not in (OURS, *SVGPS)
    ]
    heads = ["set", "RMSE, ours (1×)", "SVGP 5×", "other GPs 5×", "NLL, ours (1×)", "SVGP 5×"]
    heads += ["other GPs 5×", "ours ahead of SVGP", "best trees 5×, RMSE", "trees win"]
    rows, verdicts = [], []
    for name in plan.sets:
        leads, wins = ahead(store, plan, name, svgps, MORE), _trees_win(store, plan, name, MORE)
        rows.append([name])
        for score in ("RMSE", "NLL"):
            rows[-1].append(_shown(store, plan, name, [OURS], score, 1, bare=True))
            rows[-1] += [_shown(store, plan, name, some, score, MORE) for some in (svgps, others)]
        trees = _shown(store, plan, name, _trees(plan), "RMSE", MORE)
        rows[-1] += [_word(leads), trees, _word(wins)]
        verdicts.append((leads, wins))
    texts = (
        "ours ahead of SVGP (the better of Adam and natural gradient) with five times our time",
        "trees with five times our time ahead of ours in RMSE",
    )
    return _with_counts("## Others with five times our time", heads, rows, texts, verdicts)


def _with_counts(
    title: str,
    heads: Sequence[str],
    rows: list[list[str]],
    texts: Sequence[str],
    verdicts: Sequence[tuple[bool | None, ...]],
) -> str:
    """Return a table with a title, and how often each verdict is yes."""
    counts = [
        f"- {text}: {column.count(True)} of {len(column)} sets"
        + (f" ({column.count(None)} not run to the end)" if None in column else "")
        for text, column in zip(texts, zip(*verdicts, strict=True), strict=True)
    ]
    return "\n\n".join([title, table(heads, rows), "\n".join(counts)])


def _trees(plan: Plan) -> list[str]:
    return [peer for peer in plan.peers if PEERS[peer].kind == "trees"]


def ahead(store: Store, plan: Plan, name: str, others: Sequence[str], times: float) -> bool | None:
    """Return whether ours has lower mean RMSE and NLL than all others; None if some are not run.

    A peer that failed on a fold is compared on the others, and is behind if it failed on all.
    """
    mine = _results(store, plan, OURS, name, 1)
    theirs = [_results(store, plan, peer, name, times) for peer in others]
    if not theirs or any(result is None for results in (mine, *theirs) for result in results):
        return None
    return all(_lower(mine, results, score) for results in theirs for score in ("RMSE", "NLL"))


def _lower(mine: Sequence[Result | None], theirs: Sequence[Result | None], score: str) -> bool:
    """Return whether ours is lower on the folds where the other has a number."""
    both = [(a, b) for a, b in zip(mine, theirs, strict=True) if a and b and score in b]
    if any(score not in a for a, _ in both):
        return False  # ours failed where the other did not
    return not both or mean(a[score] for a, _ in both) < mean(b[score] for _, b in both)


def _trees_win(store: Store, plan: Plan, name: str, times: float) -> bool | None:
    mine = _results(store, plan, OURS, name, 1)
    theirs = [_results(store, plan, peer, name, times) for peer in _trees(plan)]
    if not theirs or any(result is None for results in (mine, *theirs) for result in results):
        return None
    return not all(_lower(mine, results, "RMSE") for results in theirs)


def _shown(
    store: Store,
    plan: Plan,
    name: str,
    peers: Sequence[str],
    score: str,
    times: float,
    bare: bool = False,
) -> str:
    """Return the lowest mean of these peers, and whose it is."""
    means = {}
    for peer in peers:
        results = _results(store, plan, peer, name, times)
        values = [result[score] for result in results if result and score in result]
        if values:
            means[peer] = mean(values)
    if not means:
        return NOT_RUN
    best = min(means, key=lambda peer: means[peer])
    return f"{means[best]:.4f}" + ("" if bare else f" ({best})")


def _results(store: Store, plan: Plan, peer: str, name: str, times: float) -> list[Result | None]:
    """Return a peer's results, one per fold; ours has only those at its own time."""
    times = 1 if peer == OURS else times
    return [store.get(key_of(plan, peer, name, fold, times)) for fold in plan.folds]


def _notes(title: str, results: Sequence[Result | None], folds: int) -> list[str]:
    """Return what is behind a row: failures, folds that are missing, rows, steps, trees."""
    there = [result for result in results if result is not None]
    notes = [f"{title}: failed ({result['error']})" for result in there if "error" in result]
    if 0 < len(there) < folds:
        notes.append(f"{title}: {len(there)} of {folds} folds")
    parts = [
        f"{name} {spread_cell(there, name)}"
        for name in ("rows", "steps", "trees", "quantile seconds")
        if any(name in result for result in there)
    ]
    return [*dict.fromkeys(notes), *([f"{title}: {', '.join(parts)}"] if parts else [])]


def _sizes(store: Store, plan: Plan, name: str) -> str:
    for peer in plan.peers:
        for result in _results(store, plan, peer, name, 1):
            if result and "N" in result:
                sizes = f"{result['N']:,} training rows, {result['D']} inputs"
                return f" ({sizes}, {result['P']} outputs)" if result["P"] > 1 else f" ({sizes})"
    return ""


def _word(verdict: bool | None) -> str:
    return {True: "yes", False: "no", None: NOT_RUN}[verdict]
