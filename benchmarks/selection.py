"""Which rows should become functions: four choices, for the mean's basis and for the covariance's.

    python -m benchmarks.selection [--data ../shared/data] [--sets kin40k protein] [--seeds 0 1]
        [--mean 4096] [--cov 256]

The mean has `--mean` functions for all rows, the covariance `--cov`. Everything else is the default.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from benchmarks.machine import describe
from benchmarks.tables import SETS, load
from decoupledgp import DecoupledGPRegressor
from decoupledgp.report.metrics import score
from decoupledgp.solvers.selection import CHOICES


def main() -> None:
    """Run every choice with every seed and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--sets", nargs="+", default=["kin40k", "protein"], choices=list(SETS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--mean", type=int, default=4096)
    parser.add_argument("--cov", type=int, default=256)
    options = parser.parse_args()
    print(f"M_α = {options.mean}, M_β = {options.cov}, fold 0; {describe()}\n")
    print("| set | choice | seed | RMSE | NLL | 95% coverage | seconds |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for name in options.sets:
        split = load(name, 0, options.data)
        for choice in CHOICES:
            for seed in options.seeds:
                start = time.perf_counter()
                model = DecoupledGPRegressor(
                    options.mean, options.cov, basis_choice=choice, random_state=seed
                ).fit(split.X_train, split.y_train[:, 0])
                seconds = time.perf_counter() - start
                s = score(split.y_test[:, 0], *model.predict(split.X_test, return_std=True))
                cells = (f"{s.rmse:.4f}", f"{s.nll:.3f}", f"{s.coverage:.3f}", f"{seconds:.0f}")
                print(f"| {name} | {choice} | {seed} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
