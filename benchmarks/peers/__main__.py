"""`DecoupledGPRegressor` beside other people's models: same rows, threads and seconds.

    python -m benchmarks.peers [--data ../shared/data] [--sets kin40k ...] [--peers ours svgp ...]
        [--folds 0 1 2] [--seconds 60] [--times 1 5] [--out out/peers.jsonl] [--report]

Ours gets `--seconds`; the others get as many, or as many as ours really took if that is more, and a
multiple of that. Every model runs in a process of its own with two threads, on standardised data;
memory is its peak resident size. Results are kept in `--out` as they come, and what is there already
is not run again; `--report` runs nothing and prints the tables. The peer `defaults` is the table of
`DecoupledGPRegressor()` with nothing set at all.
"""

from __future__ import annotations

import argparse
import os
from importlib.util import find_spec
from pathlib import Path

from benchmarks.machine import describe
from benchmarks.peers.defaults import SETS as DEFAULT_SETS
from benchmarks.peers.defaults import defaults_table, run_defaults
from benchmarks.peers.families import OURS, PEERS
from benchmarks.peers.measure import apart, by_clock
from benchmarks.peers.ours import warm_up
from benchmarks.peers.report import Plan, equal_time_tables, key_of, summary
from benchmarks.processes import measure_apart
from benchmarks.store import Store
from benchmarks.tables import SETS, TWELVE

THREADS = "2"
DEFAULTS = "defaults"


def main() -> None:
    """Run what is missing and print the tables."""
    options = _options()
    for variable in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(variable, THREADS)  # of the processes that are started from here
    store = Store(options.out)
    peers = [name for name in PEERS if name in options.peers]
    # The simulated arm has a part in the table of the defaults only, unless it is asked for by name.
    sets = options.sets or list(TWELVE)
    plan = Plan(sets, peers, options.folds, options.seconds, options.times)
    default_sets = [name for name in DEFAULT_SETS if name in (options.sets or DEFAULT_SETS)]
    if not options.report:
        measure_apart(warm_up)
        try:
            if DEFAULTS in options.peers:
                run_defaults(store, default_sets, options.data)
            for fold in options.folds:
                for name in sets:
                    for peer in peers:
                        run(store, plan, peer, name, fold, options.data)
        except FileNotFoundError as error:
            raise SystemExit(str(error)) from None
    print(f"{describe()}\n")
    if DEFAULTS in options.peers and default_sets:
        print(defaults_table(store, default_sets))
    if peers:
        print(equal_time_tables(store, plan))
        print(summary(store, plan))


def run(store: Store, plan: Plan, peer: str, name: str, fold: int, folder: Path) -> None:
    """Run one model on one split for those multiples of the time that have no result yet."""
    times = [1.0] if peer == OURS else sorted(plan.times)
    keys = [key_of(plan, peer, name, fold, multiple) for multiple in times]
    if all(key in store for key in keys):
        return
    results = apart(by_clock, peer, name, fold, folder, clock_of(store, plan, name, fold), times)
    if isinstance(results, dict):  # the process died as a whole
        results = [results] * len(times)
    for key, result in zip(keys, results, strict=True):
        if key not in store:
            store.add(key, result)
            _say(f"{name} fold {fold}, {peer} {key['times']:g}x", result)


def clock_of(store: Store, plan: Plan, name: str, fold: int) -> float:
    """Return the seconds of ours on this split if they are known and more than was asked for."""
    ours = store.get(key_of(plan, OURS, name, fold, 1)) or {}
    return max(plan.seconds, ours.get("seconds", 0.0))


def _say(title: str, result: dict[str, float]) -> None:
    shown = ("error", "RMSE", "NLL", "95%", "seconds", "MB")
    parts = [f"{name} {result[name]:.4g}" for name in shown[1:] if name in result]
    print(f"{title}: {', '.join(parts) or result.get('error')}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__.split("\n", 1)[0]
    )
    names = [*PEERS, DEFAULTS]
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--sets", nargs="+", choices=list(SETS), metavar="SET")
    parser.add_argument("--peers", nargs="+", default=names, choices=names)
    parser.add_argument("--folds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--times", type=float, nargs="+", default=[1.0, 5.0])
    parser.add_argument("--out", type=Path, default=Path("out/peers.jsonl"))
    parser.add_argument("--report", action="store_true", help="only print what has been run")
    options = parser.parse_args()
    if "xgboost" in options.peers and not options.report and find_spec("xgboost") is None:
        parser.error("XGBoost is not here: pip install -e '.[bench]', or leave it out of --peers")
    return options


if __name__ == "__main__":
    main()
