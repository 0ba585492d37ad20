"""kin40k, fold 0: the paper's algorithm with M_α = 4096, M_β = 128, and a shared basis beside it.

    python -m benchmarks.kin40k [--iterations 1000] [--seeds 0 1 2]

Inputs and targets are standardised by the training rows, so RMSE is in standard deviations of y.
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
    """Run every model with every seed and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    split = load_kin40k()
    y_scale = split.y_train.std()
    print(f"kin40k fold 0, {options.iterations} iterations, preset='paper'; {describe()}\n")
    print("| M_α | M_β | basis | seed | RMSE | nMSE | NLL | 95% coverage | bound/N | seconds |")
    print("| ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for m_alpha, m_beta, basis in (
        (128, 128, "multiscale"),
        (4096, 128, "multiscale"),
        (4096, 128, "points"),
    ):
        for seed in options.seeds:
            model = DecoupledGPRegressor(
                m_alpha,
                m_beta,
                partially_shared=m_alpha == m_beta,
                basis=basis,
                preset="paper",
                max_iter=options.iterations,
                random_state=seed,
            )
            y_train, y_test = split.y_train / y_scale, split.y_test / y_scale
            start = time.perf_counter()
            model.fit(split.X_train, y_train)
            seconds = time.perf_counter() - start
            s = score(y_test, *model.predict(split.X_test, return_std=True))
            bound = model.elbo(split.X_test, y_test) / len(y_train)
            row = (m_alpha, m_beta, basis, seed, f"{s.rmse:.4f}", f"{s.nmse:.4f}")
            more = (f"{s.nll:.3f}", f"{s.coverage:.3f}", f"{bound:.3f}", f"{seconds:.0f}")
            print("| " + " | ".join(map(str, (*row, *more))) + " |", flush=True)
            assert np.isfinite(bound)


if __name__ == "__main__":
    main()
