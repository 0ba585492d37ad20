"""One learning step: ours against plain autograd, torch.compile and the floor of the machine.

    python -m benchmarks.step [--quick]

Times are ratios within one run: the fastest of several steps each, in `--rounds` turns between the
ways (one turn of one step for the slow ways). "operators" are K_Xα a and the sampled quadratic
with all gradients, which the other columns compute too; "whole step" adds the covariance part, the
likelihood and Adam.
Memory is what each added to the peak resident size of a fresh process. The last line is what another
output costs, as a share of the step with one output.
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
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"M_β = 128, multiscale basis; {describe()}\n")
    ways = list(WAYS)
    names = ["whole step", "operators", "autograd", "torch.compile", "floor"]
    head = ["D", "N_m", "M_α", "\\|S\\|", "P", "dtype", *(f"{name}, s" for name in names)]
    head += [f"autograd / {name}" for name in names[:2]]
    head += [f"{name} / floor" for name in names[:2]]
    head += [f"{name}, MB" for name in names[:4]]
    print("| " + " | ".join(head) + " |")
    print("|" + " ---: |" * len(head))
    steps = {}
    for problem in GRID[:4] if options.quick else GRID:
        results = measure(problem, options.repeats, options.rounds)
        seconds = [results[way]["seconds"] for way in ways]
        sizes = (problem.features, problem.rows, problem.mean, problem.columns, problem.outputs)
        row = [*map(str, sizes), problem.dtype, *(f"{value:.3f}" for value in seconds)]
        row += [f"{seconds[2] / seconds[i]:.1f}" for i in (0, 1)]
        row += [f"{seconds[i] / seconds[4]:.2f}" for i in (0, 1)]
        row += [f"{results[way]['megabytes']:.0f}" for way in ways[:4]]
        print("| " + " | ".join(row) + " |", flush=True)
        if problem == Problem(outputs=problem.outputs):
            steps[problem.outputs] = seconds[0]
    most = max(steps)
    share = (steps[most] - steps[1]) / (most - 1) / steps[1]
    print(f"\none more output, from P = 1 to {most}: {share:.1%} of the step with one")


def measure(problem: Problem, repeats: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return the best of all rounds for every way."""
    results: dict[str, dict[str, float]] = {}
    for turn in range(rounds):
        for way in WAYS:
            slow = way in ("autograd", "torch.compile")
            if slow and turn:
                continue
            result = measure_apart(measure_step, problem, way, 1 if slow else repeats)
            best = results.setdefault(way, result)
            best["seconds"] = min(best["seconds"], result["seconds"])
    return results


if __name__ == "__main__":
    main()
