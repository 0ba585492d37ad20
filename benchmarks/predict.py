"""Prediction through the estimator, and what importing the package costs.

    python -m benchmarks.predict [--mean 16384] [--features 23]

One row, mean and standard deviation: the median over 500 calls. Many rows: rows per second. Import:
seconds beyond importing PyTorch, GPyTorch and scikit-learn, the median of five fresh interpreters.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

import numpy as np

from benchmarks.machine import describe
from decoupledgp import DecoupledGPRegressor

IMPORT = (
    "import sys, time, torch, gpytorch, sklearn.base, sklearn.utils.validation;"
    "before = set(sys.modules); start = time.perf_counter();"
    "import decoupledgp; print(time.perf_counter() - start);"
    "new = set(sys.modules) - before;"
    "print([m for m in ('numba', 'pyarrow', 'matplotlib') if m in new])"
)


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mean", type=int, default=16384)
    parser.add_argument("--cov", type=int, default=128)
    parser.add_argument("--features", type=int, default=23)
    parser.add_argument("--rows", type=int, default=100_000)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    X = rng.standard_normal((options.mean, options.features))
    model = DecoupledGPRegressor(
        options.mean,
        options.cov,
        batch_size=options.mean,
        basis_increment=options.mean,
        kl_batch_size=16,
        max_iter=2,
        random_state=0,
    ).fit(X, X[:, 0])
    print(
        f"M_α = {model.n_mean_basis_}, M_β = {model.n_cov_basis_}, D = {options.features}; {describe()}\n"
    )
    print("| | |\n| --- | ---: |")
    row, seconds = X[:1], []
    model.predict(row, return_std=True)
    for _ in range(500):
        start = time.perf_counter()
        model.predict(row, return_std=True)
        seconds.append(time.perf_counter() - start)
    print(f"| one row, mean and std: median | {1e3 * np.median(seconds):.2f} ms |")
    rows = rng.standard_normal((options.rows, options.features))
    for name, std in (("mean", False), ("mean and std", True)):
        start = time.perf_counter()
        model.predict(rows, return_std=std)
        rate = options.rows / (time.perf_counter() - start)
        print(f"| {options.rows:,} rows, {name} | {rate:,.0f} rows/s |")
    outputs = [
        subprocess.run([sys.executable, "-c", IMPORT], check=True, capture_output=True, text=True)
        for _ in range(5)
    ]
    lines = [output.stdout.splitlines() for output in outputs]
    print(
        f"| import, beyond its libraries | {np.median([float(line[0]) for line in lines]):.2f} s |"
    )
    print(f"\nimported although not needed yet: {lines[0][1]}")


if __name__ == "__main__":
    main()
