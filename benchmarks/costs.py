"""What a step or evaluation of every system costs against its basis, beside the paper's table 1.

    python -m benchmarks.costs [--systems SVDGP SVI ...]

D = 8, one output, minibatches of 1,024 rows. Online systems: the fastest of the last five steps of a
`fit` whose basis is full. Batch systems: one evaluation of the bound with its gradient, the fastest of
five. Each size runs in a process of its own; memory is the growth of its peak resident size from
before the model was built.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.machine import describe
from benchmarks.processes import measure_apart, peak_megabytes
from benchmarks.scaling import exponent
from decoupledgp import (
    DecoupledGPRegressor,
    ExactGPRegressor,
    IncrementalGPRegressor,
    SparseGPRegressor,
    SVGPRegressor,
)

ROWS, FEATURES, REPEATS = 1024, 8, 5
MEAN = 4096
"""M_α while M_β grows."""


@dataclass(frozen=True)
class System:
    """A row of the table: what grows, through which sizes, and the highest power of it."""

    size: str
    sizes: tuple[int, ...]
    power: str


LARGE = tuple(2**k for k in range(12, 17))
SYSTEMS = {
    "SVDGP": System("M_α", LARGE, "M_α"),
    "hybrid": System("M_α", LARGE, "M_α"),
    "orthogonal": System("M_α", LARGE, "M_α"),
    "SVDGP, M_β": System("M_β", (64, 128, 256, 512, 1024), "M_β³"),
    "SVI": System("M", (64, 128, 256, 512, 1024), "M³"),
    "iVSGPR": System("M", (64, 128, 256, 512, 1024), "M³"),
    "VSGPR": System("M", (64, 128, 256, 512, 1024), "M³"),
    "GPR": System("n", (128, 256, 512, 1024, 2048), "n³"),
}


def data(rows: int, features: int = FEATURES) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of a function that is not easy."""
    X = np.random.default_rng(0).uniform(-2, 2, (rows, features))
    return X, np.sin(3 * X[:, 0]) + X[:, 1] * X[:, 2]


def online(name: str, size: int, rows: int = ROWS) -> Any:
    """Return an estimator whose basis fills up with a minibatch of functions at once, and its steps."""
    options: dict[str, Any] = {"basis_increment": rows, "batch_size": rows, "random_state": 0}
    largest = max(size, MEAN) if name == "SVDGP, M_β" else size
    options["max_iter"] = math.ceil(largest / rows) + REPEATS + 1
    if name == "SVI":
        return SVGPRegressor(size, **options)
    if name == "iVSGPR":
        return IncrementalGPRegressor(size, **options)
    if name == "SVDGP, M_β":
        return DecoupledGPRegressor(MEAN, size, preset="paper", **options)
    family = "decoupled" if name == "SVDGP" else name
    return DecoupledGPRegressor(size, 128, family=family, preset="paper", **options)


def measure(
    name: str, size: int, rows: int | None = None, features: int = FEATURES
) -> dict[str, float]:
    """Return seconds per step and added megabytes of one system at one size.

    `rows` are those of a minibatch, 1,024 by default; for VSGPR all rows, 4,096 by default. GPR has
    no other size than its rows.
    """
    small = data(ROWS, features)
    if name in ("VSGPR", "GPR"):
        SparseGPRegressor(8, max_iter=1).fit(*small)  # libraries are loaded before we look
        return measure_batch(name, size, rows or 4096, features)
    rows = rows or ROWS
    online(name, 8).fit(*small)
    X, y = data(max(size, 8 * rows), features)
    before = peak_megabytes()
    model = online(name, size, rows).fit(X, y)
    times = np.diff([record["seconds"] for record in model.history_])[-REPEATS:]
    return {"seconds": float(times.min()), "megabytes": peak_megabytes() - before}


def measure_batch(name: str, size: int, rows: int, features: int) -> dict[str, float]:
    """Time the bound and its gradient at the first parameters."""
    X, y = data(size if name == "GPR" else rows, features)
    make: Any = ExactGPRegressor if name == "GPR" else SparseGPRegressor
    sizes: dict[str, Any] = {} if name == "GPR" else {"n_basis": size}
    before = peak_megabytes()
    model = make(max_rows=len(X), max_iter=1, random_state=0, **sizes).fit(X, y)
    run = model._run
    tensors, parameters = run.tensors(X, y[:, None]), run._trainable()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        torch.autograd.grad(run._solution(*tensors).bound(), parameters)
        times.append(time.perf_counter() - start)
    return {"seconds": min(times), "megabytes": peak_megabytes() - before}


def main() -> None:
    """Print a Markdown table with the exponents of the last three sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    options = parser.parse_args()
    print(f"D = {FEATURES}, N_m = {ROWS}; {describe()}\n")
    print("| system | grows | seconds | added MB | time ∝ | memory ∝ | at most |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in options.systems:
        system = SYSTEMS[name]
        results = [measure_apart(measure, name, size) for size in system.sizes]
        seconds, megabytes = ([r[key] for r in results] for key in ("seconds", "megabytes"))
        last = list(system.sizes[-3:])
        powers = [
            f"{system.size}^{exponent(last, values[-3:]):.2f}" for values in (seconds, megabytes)
        ]
        cells = (
            name.split(",")[0],
            f"{system.size}: " + ", ".join(f"{size:,}" for size in system.sizes),
            ", ".join(f"{value:.3f}" for value in seconds),
            ", ".join(f"{value:.0f}" for value in megabytes),
            *powers,
            system.power,
        )
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
