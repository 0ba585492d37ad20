"""One learning step: ours against plain autograd, torch.compile and the floor of the machine.

    python -m benchmarks.step [--quick]

Times are ratios within one run. "operators" are K_Xα a and the sampled quadratic with all gradients,
which the other columns compute too; "whole step" adds the covariance part, the likelihood and Adam.
Memory is what each added to the peak resident size of a fresh process.
"""

from __future__ import annotations

import argparse

from benchmarks.machine import describe
from benchmarks.processes import measure_apart
from benchmarks.steps import WAYS, Problem, measure_step

GRID = (
    Problem(columns=128),
    Problem(columns=1024),
    Problem(columns=1024, outputs=2),
    Problem(columns=1024, outputs=7),
    Problem(columns=1024, dtype="float64"),
    Problem(features=8, mean=4096, columns=1024),
    Problem(features=8, mean=16384, columns=128),
    Problem(features=46, columns=128),
    Problem(rows=256, columns=128),
)


def main() -> None:
    """Print a Markdown table over the grid."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only the paper's size")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(f"M_β = 128, multiscale basis; {describe()}\n")
    ways = list(WAYS)
    names = ["whole step", "operators", "autograd", "torch.compile", "floor"]
    head = ["D", "N_m", "M_α", "|S|", "P", "dtype", *(f"{name}, s" for name in names)]
    head += ["autograd / operators", "operators / floor", *(f"{name}, MB" for name in names[:4])]
    print("| " + " | ".join(head) + " |")
    print("|" + " ---: |" * len(head))
    for problem in GRID[:2] if options.quick else GRID:
        results = {way: measure_apart(measure_step, problem, way, options.repeats) for way in ways}
        seconds = [results[way]["seconds"] for way in ways]
        sizes = (problem.features, problem.rows, problem.mean, problem.columns, problem.outputs)
        row = [*map(str, sizes), problem.dtype, *(f"{value:.3f}" for value in seconds)]
        row += [f"{seconds[2] / seconds[1]:.1f}", f"{seconds[1] / seconds[4]:.2f}"]
        row += [f"{results[way]['megabytes']:.0f}" for way in ways[:4]]
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
