"""A stream against a refit: what `partial_fit` loses and what it costs, on kin40k.

    python -m benchmarks.online [--chunk 1000] [--seeds 0]

The first half of the training rows is fitted, the other half comes in chunks. Beside the error of the
streamed model stands that of a model fitted to the same rows from scratch. "whole" are chunks after
which everything is solved for again, because the rows have grown by a quarter since the last time.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from benchmarks.machine import describe
from decoupledgp import DecoupledGPRegressor
from decoupledgp.data import load_kin40k
from decoupledgp.report.metrics import score


def main() -> None:
    """Stream, refit at the end, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunk", type=int, default=1000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    options = parser.parse_args()
    split = load_kin40k()
    scale = split.y_train.std()
    y_train, y_test = split.y_train / scale, split.y_test / scale
    n = len(y_train)
    print(f"kin40k fold 0, {n // 2:,} rows, then chunks of {options.chunk:,}; {describe()}\n")
    print("| model | seed | rows | RMSE | NLL | 95% coverage | seconds |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | --- |")

    def report(name: str, seed: int, model: DecoupledGPRegressor, seconds: str) -> None:
        s = score(y_test, *model.predict(split.X_test, return_std=True))
        cells = (f"{model.n_rows_:,}", f"{s.rmse:.4f}", f"{s.nll:.3f}", f"{s.coverage:.3f}")
        print(f"| {name} | {seed} | {' | '.join(cells)} | {seconds} |", flush=True)

    for seed in options.seeds:
        order = np.random.default_rng(seed).permutation(n)
        model, seconds = _timed(
            DecoupledGPRegressor(random_state=seed), split.X_train, y_train, order[: n // 2]
        )
        report("fit", seed, model, f"{seconds:.0f}")
        small, whole = [], []
        for start in range(n // 2, n, options.chunk):
            rows, solved = order[start : start + options.chunk], model._run.solved_rows
            begin = time.perf_counter()
            model.partial_fit(split.X_train[rows], y_train[rows])
            (small if model._run.solved_rows == solved else whole).append(
                time.perf_counter() - begin
            )
        taken = f"{np.median(small):.1f} a chunk; whole: {', '.join(f'{s:.0f}' for s in whole)}"
        report("partial_fit", seed, model, taken)
        model, seconds = _timed(
            DecoupledGPRegressor(random_state=seed), split.X_train, y_train, order
        )
        report("fit of all", seed, model, f"{seconds:.0f}")


def _timed(
    model: DecoupledGPRegressor, X: np.ndarray, y: np.ndarray, rows: np.ndarray
) -> tuple[DecoupledGPRegressor, float]:
    start = time.perf_counter()
    return model.fit(X[rows], y[rows]), time.perf_counter() - start


if __name__ == "__main__":
    main()
