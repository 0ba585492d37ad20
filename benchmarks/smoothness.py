"""What choosing the kernel's smoothness is worth: SE-ARD against the default, both for the same time.

    python -m benchmarks.smoothness [--data ../shared/data] [--sets kin40k protein] [--folds 0]
        [--seconds 15]

The two are run in turn on every set; where test rows are of groups of their own, both are told the groups.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from benchmarks.machine import describe
from benchmarks.peers.ours import warm_up
from benchmarks.tables import SETS, TWELVE, load
from decoupledgp import DecoupledGPRegressor
from decoupledgp.kernels import smoothness
from decoupledgp.report.metrics import score

TITLES = {None: "SE", "auto": "chosen"}


def main() -> None:
    """Run both kernels on every set and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--sets", nargs="+", default=list(TWELVE), choices=list(SETS))
    parser.add_argument("--folds", type=int, nargs="+", default=[0])
    parser.add_argument("--seconds", type=float, default=15.0)
    options = parser.parse_args()
    warm_up()
    print(f"{options.seconds:g} seconds each; {describe()}\n")
    print("| set | fold | kernel | ν | RMSE | NLL | 95% coverage | functions | seconds |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    ahead = {"RMSE": 0, "NLL": 0}
    runs = [(name, fold) for name in options.sets for fold in options.folds]
    for name, fold in runs:
        split, scores = load(name, fold, options.data), {}
        for kernel, title in TITLES.items():
            start = time.perf_counter()
            model = DecoupledGPRegressor(
                kernel=kernel, max_seconds=options.seconds, random_state=fold
            ).fit(split.X_train, split.y_train, groups=split.groups)
            seconds = time.perf_counter() - start
            mean, std = (
                part.reshape(split.y_test.shape)
                for part in model.predict(split.X_test, return_std=True)
            )
            scores[title] = s = score(split.y_test, mean, std)
            nu = smoothness(model.kernel_.base_kernel)
            cells = [f"{s.rmse:.4f}", f"{s.nll:.3f}", f"{s.coverage:.3f}"]
            cells += [f"{model.n_mean_basis_:,}", f"{seconds:.0f}"]
            order = "∞" if nu == np.inf else f"{nu:g}"
            print(f"| {name} | {fold} | {title} | {order} | {' | '.join(cells)} |", flush=True)
        chosen, smooth = scores["chosen"], scores["SE"]
        ahead["RMSE"] += chosen.rmse < smooth.rmse
        ahead["NLL"] += chosen.nll < smooth.nll
    counts = ", ".join(f"{measure} on {count}" for measure, count in ahead.items())
    print(f"\nthe chosen kernel has the lower {counts} of {len(runs)}")


if __name__ == "__main__":
    main()
