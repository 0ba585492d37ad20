"""Time and peak memory of one learning step against M_α, with the fitted exponents.

    python -m benchmarks.scaling [--out out] [--sizes 1024 2048 ...]

Each size runs in a process of its own; memory is the growth of its peak resident size over what it
had before the model was built (parameters, gradients and Adam's moments included). The last columns
are what naive arrays would need.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.machine import describe
from benchmarks.processes import measure_apart
from benchmarks.steps import Problem, measure_step


def exponent(sizes: list[int], values: list[float]) -> float:
    """Return the slope of log value over log size."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def draw(sizes: list[int], seconds: list[float], megabytes: list[float], path: Path) -> None:
    """Plot time and memory against M_α on logarithmic axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    for axis, values, label in zip(
        figure.subplots(1, 2), (seconds, megabytes), ("seconds", "added MB"), strict=True
    ):
        axis.loglog(sizes, values, "o-", base=2)
        axis.set_xlabel("M_α")
        axis.set_ylabel(f"{label} per step")
        axis.set_title(f"exponent {exponent(sizes, values):.2f}", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Print a Markdown table over M_α and draw the curves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2**k for k in range(10, 18)])
    parser.add_argument("--out", type=Path, default=Path("out"))
    options = parser.parse_args()
    print(f"{Problem()}; {describe()}\n")
    print("| M_α | seconds | added MB | N_m × M_α × D, MB | M_α × M_α, MB |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    seconds, megabytes = [], []
    for size in options.sizes:
        problem = Problem(mean=size)
        result = measure_apart(measure_step, problem, "ours", 3)
        seconds.append(result["seconds"])
        megabytes.append(result["megabytes"])
        naive = (problem.rows * size * problem.features * 4, size * size * 4)
        print(
            f"| {size} | {seconds[-1]:.3f} | {megabytes[-1]:.0f} | "
            f"{naive[0] / 2**20:.0f} | {naive[1] / 2**20:.0f} |",
            flush=True,
        )
    print(
        f"\nexponent of time {exponent(options.sizes, seconds):.2f}, "
        f"of memory {exponent(options.sizes, megabytes):.2f} over all sizes"
    )
    if len(options.sizes) > 4:
        print(
            f"over the last four: time {exponent(options.sizes[-4:], seconds[-4:]):.2f}, "
            f"memory {exponent(options.sizes[-4:], megabytes[-4:]):.2f}"
        )
    draw(options.sizes, seconds, megabytes, options.out / "scaling.png")


if __name__ == "__main__":
    main()
