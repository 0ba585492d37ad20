"""`DecoupledGPRegressor()` with nothing else on every set of `uci10` and `uci20`, first split.

    python -m benchmarks.uci [--data ../shared/data] [--sets uci10/airfoil ...] [--out out/uci.jsonl]
        [--report]

Beside sets of up to 1,024 training rows stands scikit-learn's exact GP with an ARD squared-exponential
kernel, white noise and three starts. Every model runs in a process of its own; results are kept in
`--out`, and what is there is not run again. Scores are in standard deviations of the target.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor

from benchmarks.machine import describe
from benchmarks.peers.exact import exact_kernel
from benchmarks.peers.measure import apart, by_default
from benchmarks.peers.ours import warm_up
from benchmarks.peers.scores import Prediction, score
from benchmarks.peers.text import cell, table
from benchmarks.processes import measure_apart
from benchmarks.store import Key, Result, Store
from benchmarks.tables import UCI, load

FOLD = 0
THREADS = "2"
MOST_EXACT_ROWS = 1024
COVERED_FROM = 1000
"""Coverage is judged on sets with more rows than this (training and test)."""
COVERAGE = (0.90, 0.99)
MODELS = ("DecoupledGPRegressor()", "scikit-learn exact GP")


def exact(name: str, fold: int, folder: Path) -> Result:
    """Return the scores of scikit-learn's exact GP on a small set."""
    split = load(name, fold, folder)
    if len(split.X_train) > MOST_EXACT_ROWS:
        return {"skipped": f"more than {MOST_EXACT_ROWS:,} rows"}
    start = time.perf_counter()
    kernel = exact_kernel(split.X_train.shape[1])
    model = GaussianProcessRegressor(kernel, n_restarts_optimizer=2, random_state=fold)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # length-scales at their upper bound: inputs without use
        model.fit(split.X_train, split.y_train[:, 0])
    seconds = time.perf_counter() - start
    mean, std = model.predict(split.X_test, return_std=True)
    return {**score(split.y_test, Prediction(1, mean, std)), "seconds": seconds}


def judge(results: dict[str, Result]) -> str:
    """Return how many sets ran, were finite and quiet, and were covered as they should be."""
    done = {name: result for name, result in results.items() if "error" not in result}
    large = {name: result["95%"] for name, result in done.items() if result["rows"] > COVERED_FROM}
    low, high = COVERAGE
    out = [name for name, covered in large.items() if not low <= covered <= high]
    lines = [
        f"run to the end: {len(done)} of {len(UCI)} sets",
        f"sets with a NaN: {sum(result['NaN'] > 0 for result in done.values())}",
        f"most warnings on a set: {max((r['warnings'] for r in done.values()), default=0)}",
        f"95% coverage within {low} to {high}: {len(large) - len(out)} of {len(large)} sets with "
        f"more than {COVERED_FROM:,} rows" + (f"; outside: {', '.join(out)}" if out else ""),
    ]
    return "\n".join(f"- {line}" for line in lines)


def report(store: Store, sets: list[str]) -> str:
    """Return the table of all sets and the verdict."""
    columns = ("rows", "D", "RMSE", "NLL", "95%", "warnings", "NaN", "seconds")
    rows, ours = [], {}
    for name in sets:
        mine, other = (store.get(_key(name, model)) for model in MODELS)
        cells = [cell(mine, column) for column in columns]
        if mine and "error" in mine:
            cells[2] = f"failed ({mine['error']})"
        beside = [cell(other, column) for column in ("RMSE", "NLL")]
        rows.append([name, *cells, *beside])
        if mine:
            ours[name] = mine
    heads = ["set", *columns, "exact GP, RMSE", "exact GP, NLL"]
    return f"{table(heads, rows)}\n\n{judge(ours)}\n"


def ours(name: str, fold: int, folder: Path) -> Result:
    """Return the scores of the defaults, with the number of rows of the whole set."""
    split = load(name, fold, folder)
    return {**by_default(name, fold, folder), "rows": len(split.X_train) + len(split.X_test)}


FUNCTIONS = dict(zip(MODELS, (ours, exact), strict=True))


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--sets", nargs="+", default=list(UCI), choices=list(UCI), metavar="SET")
    parser.add_argument("--out", type=Path, default=Path("out/uci.jsonl"))
    parser.add_argument("--report", action="store_true", help="only print what has been run")
    options = parser.parse_args()
    for variable in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(variable, THREADS)
    store = Store(options.out)
    if not options.report:
        measure_apart(warm_up)
        for name in options.sets:
            if not (options.data / f"{name}.npz").is_file():
                parser.error(f"no file {name}.npz in {options.data}; pass the folder as --data")
            for model, function in FUNCTIONS.items():
                if _key(name, model) not in store:
                    result = apart(function, name, FOLD, options.data)
                    store.add(_key(name, model), result)
                    print(f"{name}, {model}: {_brief(result)}", flush=True)
    print(f"{describe()}\n\n{report(store, options.sets)}")


def _key(name: str, model: str) -> Key:
    return {"set": name, "fold": FOLD, "peer": model}


def _brief(result: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {np.round(value, 4) if isinstance(value, float) else value}"
        for name, value in result.items()
    )


if __name__ == "__main__":
    main()
