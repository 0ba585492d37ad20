"""The paper's figure 3: bound and error over iterations and over seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.paper.data import outputs_of
from benchmarks.paper.results import Results
from benchmarks.paper.systems import SYSTEMS

__all__ = ["draw_figure_3", "figure_3_output"]

PAPERS = {"svdgp": "tab:blue", "svi": "tab:red", "ivsgpr": "goldenrod"}
"""The paper's colours."""
ONLINE = {**PAPERS, "svdgp-0.1": "lightskyblue"}
"""Systems whose curves are drawn."""
POINTS = {
    "defaults": ("*", "black"),
    "svgp": ("s", "tab:purple"),
    "boosting-timed": ("v", "tab:green"),
    "boosting": ("^", "tab:green"),
}
"""Systems of which only the end is known: marks in the panels over seconds."""
MEASURES = {"bound": "bound on test rows, 10⁵", "nmse": "nMSE"}


def figure_3_output(results: Results, data: str) -> int | None:
    """Return the output with most curves; of several the last, the ninth of MUJOCO1 being the paper's."""
    curves = {k: sum(bool(results.curve(data, k, s)) for s in PAPERS) for k in outputs_of(data)}
    most = max(curves.values())
    return max(k for k, count in curves.items() if count == most) if most else None


def draw_figure_3(results: Results, data: str, output: int, path: Path) -> None:
    """Draw the curves of the online systems, and where the others ended; lower row: the error."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6.4), layout="constrained")
    axes = figure.subplots(2, 2, sharey="row")
    for column, over in enumerate(("iteration", "seconds")):
        for row, measure in enumerate(MEASURES):
            axis = axes[row, column]
            _draw_curves(axis, results, data, output, over, measure)
            if over == "seconds":
                _draw_ends(axis, results, data, output, measure)
            axis.set_xscale("log")
            axis.set_xlabel("iterations" if over == "iteration" else "seconds of learning")
            if column == 0:
                axis.set_ylabel(MEASURES[measure])
            if measure == "nmse":
                axis.set_yscale("log")
            axis.grid(alpha=0.3)
    axes[1, 1].legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "figure 3"}):  # the same results give the same file
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw_curves(
    axis: Any, results: Results, data: str, output: int, over: str, measure: str
) -> None:
    scale = 1e5 if measure == "bound" else 1
    for system, colour in ONLINE.items():
        points = results.curve(data, output, system)
        if points:
            axis.plot(
                [point[over] for point in points],
                [point[measure] / scale for point in points],
                ".-",
                color=colour,
                label=SYSTEMS[system].title,
            )


def _draw_ends(axis: Any, results: Results, data: str, output: int, measure: str) -> None:
    for system, (marker, colour) in POINTS.items():
        value = results.value(data, output, system, measure)
        seconds = results.value(data, output, system, "seconds")
        if value is not None and seconds is not None:
            title = SYSTEMS[system].title
            axis.plot([seconds], [value], marker, color=colour, label=title)
