"""The paper's five systems and two more families on kin40k, fold 0, at a quarter of the paper's sizes.

    python -m benchmarks.systems [--iterations 1000] [--seeds 0]

Online systems take `--iterations` minibatches of 1,024 rows; batch systems take 100 iterations of
nonlinear conjugate gradient on as many random rows as the paper gives them, divided by four. M_β is
the paper's 128. The bound is the held-out one, per row learnt from, so that it does not depend on how
many those were. Targets are divided by their standard deviation.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

from benchmarks.machine import describe
from decoupledgp import (
    DecoupledGPRegressor,
    ExactGPRegressor,
    IncrementalGPRegressor,
    SparseGPRegressor,
    SVGPRegressor,
)
from decoupledgp.data import load_kin40k
from decoupledgp.report.metrics import score


def systems(iterations: int, seed: int) -> dict[str, Any]:
    """Return the estimators by name and sizes."""
    online: dict[str, Any] = {"max_iter": iterations, "random_state": seed}
    return {
        "SVDGP, M_α = 4096, M_β = 128": DecoupledGPRegressor(4096, 128, **online),
        "hybrid, M_α = 4096, M_β = 128": DecoupledGPRegressor(4096, 128, family="hybrid", **online),
        "orthogonal, M_α = 4096, M_β = 128": DecoupledGPRegressor(
            4096, 128, family="orthogonal", **online
        ),
        "SVI, M = 256": SVGPRegressor(256, **online),
        "iVSGPR, M = 64": IncrementalGPRegressor(64, **online),
        "VSGPR, M = 256, 1,024 rows": SparseGPRegressor(256, max_rows=1024, random_state=seed),
        "GPR, 256 rows": ExactGPRegressor(max_rows=256, random_state=seed),
    }


def main() -> None:
    """Run every system with every seed and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    options = parser.parse_args()
    warnings.filterwarnings("ignore", "(?s).*learns from .* random rows")
    split = load_kin40k()
    y_scale = split.y_train.std()
    y_train, y_test = split.y_train / y_scale, split.y_test / y_scale
    print(f"kin40k fold 0, {options.iterations} minibatches; {describe()}\n")
    print("| system | seed | nMSE | bound per row | NLL | 95% coverage | seconds |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for seed in options.seeds:
        for name, model in systems(options.iterations, seed).items():
            start = time.perf_counter()
            model.fit(split.X_train, y_train)
            seconds = time.perf_counter() - start
            s = score(y_test, *model.predict(split.X_test, return_std=True))
            bound = model.elbo(split.X_test, y_test) / model.n_rows_
            row = (name, seed, f"{s.nmse:.4f}", f"{bound:.3f}", f"{s.nll:.3f}")
            more = (f"{s.coverage:.3f}", f"{seconds:.0f}")
            print("| " + " | ".join(map(str, (*row, *more))) + " |", flush=True)


if __name__ == "__main__":
    main()
