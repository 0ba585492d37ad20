"""Time and memory of a step of every system against each of its sizes, beside the paper's table 1.

    python -m benchmarks.complexity [--quick] [--systems SVDGP SVI ...] [--out out/complexity]

One size grows at a time; the others stay at M_α = 4,096, M_β = 128, M = 256, N_m = 1,024 (VSGPR: 4,096
rows, GPR: 1,024), D = 8, one output. What a step is, and how it is measured, is in `benchmarks.costs`.
Exponents are slopes of the last three sizes on logarithmic axes. The paper's are limits: terms that are
still small at these sizes, and fixed costs, keep a measured exponent below them. Writes a table, a CSV
file and a figure.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.costs import MEAN, measure
from benchmarks.costs import SYSTEMS as COSTS
from benchmarks.machine import describe
from benchmarks.processes import measure_apart
from benchmarks.scaling import exponent

__all__ = ["SWEEPS", "Curve", "Sweep", "draw", "table"]

MINIBATCHES = (256, 512, 1024, 2048, 4096)
FEATURES = (4, 8, 16, 32, 64)
PAGE = 4096 / 2**20
"""A page in megabytes."""


@dataclass(frozen=True)
class Sweep:
    """One size of one system through several values, and its powers in the paper's table 1."""

    system: str
    variable: str
    sizes: tuple[int, ...]
    time: int
    """Highest power of the variable in the paper's time."""
    space: int
    """The same in its space."""

    def arguments(self, size: int) -> tuple[Any, ...]:
        """Return the arguments of `costs.measure`: system, basis, rows, features."""
        if self.variable == "M_β":
            return (f"{self.system}, M_β", size)
        if self.variable in ("M_α", "M") or (self.system, self.variable) == ("GPR", "N"):
            return (self.system, size)
        basis = {"SVDGP": MEAN, "GPR": 1024}.get(self.system, 256)
        if self.variable == "D":
            return (self.system, basis, None, size)
        return (self.system, basis, size)


def _one_basis(system: str) -> list[Sweep]:
    """The sweeps of a system whose mean and covariance share M functions."""
    rows = "N" if system == "VSGPR" else "N_m"
    counts = (1024, 2048, 4096, 8192, 16384) if system == "VSGPR" else MINIBATCHES
    return [
        Sweep(system, "M", COSTS[system].sizes, 3, 2),
        Sweep(system, rows, counts, 1, 1),
        Sweep(system, "D", FEATURES, 1, 0),
    ]


SWEEPS = [
    Sweep("SVDGP", "M_α", COSTS["SVDGP"].sizes, 1, 1),
    Sweep("SVDGP", "M_β", COSTS["SVDGP, M_β"].sizes, 3, 2),
    Sweep("SVDGP", "N_m", MINIBATCHES, 1, 1),
    Sweep("SVDGP", "D", FEATURES, 1, 0),
    *_one_basis("SVI"),
    *_one_basis("iVSGPR"),
    *_one_basis("VSGPR"),
    Sweep("GPR", "N", COSTS["GPR"].sizes, 3, 2),
    Sweep("GPR", "D", FEATURES, 1, 0),
]


@dataclass(frozen=True)
class Curve:
    """What a sweep measured, size by size."""

    sweep: Sweep
    sizes: Sequence[int]
    seconds: Sequence[float]
    megabytes: Sequence[float]

    def power(self, values: Sequence[float]) -> float:
        """Return the exponent of the last three sizes."""
        return exponent(list(self.sizes[-3:]), list(values[-3:]))


def run(sweep: Sweep, quick: bool) -> Curve:
    """Measure a sweep, each size in a process of its own."""
    sizes = sweep.sizes[:3] if quick else sweep.sizes
    results = [measure_apart(measure, *sweep.arguments(size)) for size in sizes]
    seconds = [result["seconds"] for result in results]
    # A process may not have grown at all, which has no logarithm.
    megabytes = [max(result["megabytes"], PAGE) for result in results]
    return Curve(sweep, sizes, seconds, megabytes)


def table(curves: Sequence[Curve]) -> str:
    """Return the measurements as a Markdown table with the paper's exponents beside ours."""
    lines = [
        "| system | grows | seconds | added MB | time ∝ | table 1 | memory ∝ | table 1 |",
        "| --- | --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for curve in curves:
        sweep = curve.sweep
        cells = (
            sweep.system,
            f"{sweep.variable}: " + ", ".join(f"{size:,}" for size in curve.sizes),
            ", ".join(f"{value:.3f}" for value in curve.seconds),
            ", ".join(f"{value:.0f}" for value in curve.megabytes),
            f"{sweep.variable}^{curve.power(curve.seconds):.2f}",
            f"{sweep.variable}^{sweep.time}",
            f"{sweep.variable}^{curve.power(curve.megabytes):.2f}",
            f"{sweep.variable}^{sweep.space}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(curves: Sequence[Curve], path: Path) -> None:
    """Draw time (above) and memory (below) against every size, a column of panels for each."""
    from matplotlib.figure import Figure

    columns = {"M_α": ("M_α",), "M, M_β": ("M", "M_β"), "N, N_m": ("N", "N_m"), "D": ("D",)}
    figure = Figure(figsize=(14, 6.4), layout="constrained")
    axes = figure.subplots(2, len(columns))
    for (title, variables), column in zip(columns.items(), axes.T, strict=True):
        for axis, label in zip(column, ("seconds per step", "added MB"), strict=True):
            for curve in curves:
                if curve.sweep.variable in variables:
                    values = curve.seconds if "seconds" in label else curve.megabytes
                    name = f"{curve.sweep.system}: {curve.power(values):.2f}"
                    axis.loglog(curve.sizes, values, "o-", label=name)
            axis.set_xlabel(title)
            axis.set_ylabel(label)
            if axis.lines:
                axis.legend(fontsize=8, title="exponent", title_fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def write_csv(curves: Sequence[Curve], path: Path) -> None:
    """Write one line per measurement."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["system", "variable", "size", "seconds", "megabytes"])
        for curve in curves:
            for row in zip(curve.sizes, curve.seconds, curve.megabytes, strict=True):
                writer.writerow([curve.sweep.system, curve.sweep.variable, *row])


def main() -> None:
    """Measure, print each line as it comes, write the files."""
    names = list(dict.fromkeys(sweep.system for sweep in SWEEPS))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--systems", nargs="+", default=names, choices=names)
    parser.add_argument("--quick", action="store_true", help="only the three smallest sizes")
    parser.add_argument("--out", type=Path, default=Path("out/complexity"))
    options = parser.parse_args()
    print(f"{describe()}\n", flush=True)
    curves: list[Curve] = []
    for sweep in (sweep for sweep in SWEEPS if sweep.system in options.systems):
        curves.append(run(sweep, options.quick))
        lines = table(curves).splitlines()
        print("\n".join(lines if len(curves) == 1 else lines[-1:]), flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "complexity.md").write_text(f"{describe()}\n\n{table(curves)}\n")
    write_csv(curves, options.out / "complexity.csv")
    draw(curves, options.out / "complexity.svg")


if __name__ == "__main__":
    main()
