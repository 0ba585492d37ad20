"""The report: our numbers beside the paper's, as Markdown, CSV and one HTML page."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.paper.choice import DISTANCES
from benchmarks.paper.data import SETS, outputs_of
from benchmarks.paper.document import Block, Figure, Heading, Table, Text, to_html, to_markdown
from benchmarks.paper.figures import draw_figure_3, figure_3_output
from benchmarks.paper.goals import goals, seed_rows
from benchmarks.paper.protocol import Protocol
from benchmarks.paper.published import ROWS
from benchmarks.paper.published import SYSTEMS as PUBLISHED_SYSTEMS
from benchmarks.paper.results import (
    NOT_RUN,
    Results,
    number,
    published_cell,
    published_statistics,
    published_summary,
)
from benchmarks.paper.systems import SYSTEMS, System

__all__ = ["write_report"]

TITLE = "Variational inference for Gaussian process models with linear complexity, run again"
NAMES = {"nmse": "nMSE", "bound": "bound, 10⁵"}
ALONE = {
    "nll": "mean negative log predictive density, in standard deviations of the target",
    "coverage": "share of targets inside the 95% interval",
    "seconds": "seconds of learning",
    "rate": "γ_0",
}
BESIDE = (
    *("n_train", "n_test", "megabytes", "iterations", "steps", "rows"),
    *("n_mean_basis", "n_cov_basis", "distances", "rates", "objectives", "seconds_choosing"),
    *("broken", "together", "date", "commit"),
)
"""What else a line of the CSV has."""
BOUND_NOTE = (
    "Bounds are (N/n) Σ E[log p(y | f)] - KL on test rows with N the training rows, in units in which "
    "the targets have variance 1, and without the -½ log 2π per row of a Gaussian's log-density. The paper "
    "says nothing of either, but with that constant most of its bounds would be higher than a Gaussian with "
    "its nMSE can have, and without it none is. Our defaults do not climb on the bound: "
    "their covariance is solved for with a small basis and their predictive variances are calibrated "
    "afterwards, which the bound, being of the posterior before that, does not see."
)
FIRST = (
    "First length-scales, on which the paper can be read in two ways, are the median distances in each input "
    "or the one between rows, whichever has the better bound at the same time (VSGPR and GPR: the better "
    "objective after a few iterations)."
)
BESIDES = (
    "Our defaults and GPyTorch's SVGP (M = {:,}, natural gradient) get the seconds that SVDGP took, without "
    "those of its choices; a step that has begun is finished."
)
SIDE_BY_SIDE = (
    "{} outputs at a time, each on its share of the cores: {}. Compare the seconds of these systems with one "
    "another, and within an output."
)
BOOSTING = (
    "Boosting runs as it comes, and for the same seconds as these with a search for its settings; linear "
    "regression as it comes."
)
UNEQUAL = (
    "These means are not over the same outputs: the systems can be compared by output only, below."
)


def write_report(records: Iterable[dict[str, Any]], protocol: Protocol, folder: Path) -> list[Path]:
    """Write `paper.md`, `paper.csv`, `curves.csv` and `paper.html`; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    results = Results(records, protocol.name)
    sets = [name for name in SETS if name in protocol.sets or name in results.sets]
    blocks = [
        *_front(results, protocol),
        *_data(results),
        *_table_2(results, sets),
        *(_goals(results) if protocol.name == "paper" else []),
        *_figures(results, folder),
        *_complete(results, sets),
    ]
    paths = [folder / name for name in ("paper.md", "paper.html", "paper.csv", "curves.csv")]
    paths[0].write_text(to_markdown(blocks))
    paths[1].write_text(to_html(blocks, TITLE))
    _write_csv(paths[2], _long_rows(results))
    _write_csv(paths[3], _curve_rows(results))
    return paths


def _front(results: Results, protocol: Protocol) -> list[Block]:
    """Say what this is: command, sizes, seeds, machine, dates."""
    p, records = protocol, results.records
    flag = "" if p.name == "paper" else " --quick" if p.name == "quick" else f" --size {p.name}"
    seeds = ", ".join(str(seed) for seed in sorted({record["seed"] for record in records}))
    blocks: list[Block] = [
        Heading(TITLE, 1),
        Text(
            "The experiments of Cheng & Boots (NIPS 2017): table 2, the complete tables of its "
            f"appendix D, and figures 1 and 3. Command: python -m benchmarks.paper{flag}. Seeds: "
            f"{seeds or 'none'}. {len(records)} results. A cell says “{NOT_RUN}” where there is none."
        ),
        Text(
            f"{p.iterations:,} minibatches of {p.batch_size:,} rows, N_Δ = {p.increment}; SVDGP with "
            f"M_α = {p.mean_basis:,} and M_β = {p.cov_basis}, SVI with M = {p.svi:,}, iVSGPR with "
            f"M = {p.ivsgpr}, VSGPR with M = {p.vsgpr:,} on {p.vsgpr_rows:,} rows, GPR on "
            f"{p.gpr_rows:,} rows, both with at most {p.batch_iterations} iterations of conjugate "
            f"gradient. γ_0 is the one of 0.1, 0.01 and 0.001 with the best bound on training rows "
            f"after {p.trial} iterations. {FIRST if len(p.distances) > 1 else ''} Every output has a model "
            f"of its own. {BESIDES.format(p.svi)} {BOOSTING if 'boosting' in p.systems else ''}"
        ),
    ]
    if p.note:
        blocks.append(Text(p.note))
    commits = sorted({record["commit"] for record in records if record.get("commit")})
    if len(commits) > 1:
        blocks.append(Text(f"Not all of one version of the code: commits {', '.join(commits)}."))
    for machine in sorted({record["machine"] for record in records}):
        dates = sorted({r["date"] for r in records if r["machine"] == machine})
        period = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
        blocks.append(Text(f"Machine: {machine}. Run {period}."))
    return blocks


def _data(results: Results) -> list[Block]:
    """Say which data are the paper's and which are not."""
    rows = []
    for name, about in SETS.items():
        record = next((r for r in results.records if r["data"] == name), None)
        ours = f"{record['n_train']:,} / {record['n_test']:,}" if record else NOT_RUN
        paper = ROWS.get(about.published or "")
        beside = f"{(about.published or '').upper()}: {paper[0]:,} / {paper[1]:,}" if paper else "–"
        rows.append([about.title, about.origin, ours, beside])
    head = ["set", "what it is", "rows to learn / test", "the paper's"]
    return [Heading("Data"), Table(head, rows)]


def _table_2(results: Results, sets: list[str]) -> list[Block]:
    """Mean and standard deviation over outputs, beside the paper's."""
    blocks: list[Block] = [Heading("Table 2: mean ± standard deviation over outputs")]
    head = ["system", "outputs run", "nMSE", "the paper's", "bound, 10⁵", "the paper's"]
    head += ["NLL", "95% coverage", "seconds per output"]
    for data in sets:
        rows, which = [], set[tuple[int, ...]]()
        for system, about in _columns(results, data).items():
            ran = results.over_outputs(data, system, "nmse")[1]
            if ran:
                which.add(tuple(k for k in outputs_of(data) if results.ran(data, k, system)))
            cells = [about.title, f"{ran} of {SETS[data].n_outputs}"]
            for measure in NAMES:
                cells.append(results.summary(data, system, measure))
                cells.append(published_summary(data, system, measure))
            for measure in ("nll", "coverage", "seconds"):
                values, _ = results.over_outputs(data, system, measure)
                cells.append(
                    number(measure, float(np.mean(values)) if values else None) if ran else NOT_RUN
                )
            rows.append(cells)
        blocks += [Heading(SETS[data].title, 3), Text(_caveat(data)), Table(head, rows)]
        if len(which) > 1:
            blocks.append(Text(UNEQUAL))
        blocks += _side_by_side(results, data)
        broken = [r for r in results.records if r["data"] == data and r.get("broken")]
        for r in broken:
            rates = ", ".join(str(rate) for rate in r["broken"])
            title = SYSTEMS[r["system"]].title
            blocks.append(
                Text(
                    f"{title} on Y_{r['output']}, seed {r['seed']}, broke down with the γ_0 chosen "
                    f"({rates}) and was begun again with {r['rate']}."
                )
            )
    return [*blocks, Text(BOUND_NOTE)]


def _side_by_side(results: Results, data: str) -> list[Block]:
    """Say what was not learnt alone."""
    counts = {r.get("together", 1) for r in results.records if r["data"] == data} - {1}
    blocks: list[Block] = []
    for count in sorted(counts):
        outputs: dict[str, list[str]] = {}
        for k in outputs_of(data):
            titles = [
                about.title
                for system, about in SYSTEMS.items()
                if any(r.get("together", 1) == count for r in results.of(data, k, system))
            ]
            if titles:
                outputs.setdefault(", ".join(titles), []).append(f"Y_{k}")
        parts = (f"{', '.join(names)} ({titles})" for titles, names in outputs.items())
        blocks.append(Text(SIDE_BY_SIDE.format(count, "; ".join(parts))))
    return blocks


def _goals(results: Results) -> list[Block]:
    """What was to be shown, and how far seeds differ."""
    head = ["what is to be shown", "the paper's", "here", "outputs", "met"]
    blocks: list[Block] = [Heading("What is to be shown, and whether it is")]
    for data in results.sets:
        blocks += [Heading(SETS[data].title, 3), Table(head, goals(results, data))]
        rows = seed_rows(results, data)
        if rows:
            seeds = ["system", "outputs with several seeds", "largest difference of nMSE"]
            blocks.append(Table([*seeds, "standard deviation over outputs"], rows))
    return blocks if results.sets else []


def _columns(results: Results, data: str) -> dict[str, System]:
    """Return the systems of a table: of a set that was not run at all, only the paper's."""
    return {
        name: about
        for name, about in SYSTEMS.items()
        if name in (results.systems if data in results.sets else PUBLISHED_SYSTEMS)
    }


def _caveat(data: str) -> str:
    """Say what the paper's columns are worth for a set."""
    about = SETS[data]
    if about.published is None:
        return f"Data {about.origin}. The paper has no such numbers."
    same = data in ("kuka1", "kuka2")
    beside = "of the same data" if same else f"of its own {about.published.upper()}, other data"
    return f"Data {about.origin}. The paper's columns are {beside}, over all outputs."


def _figures(results: Results, folder: Path) -> list[Block]:
    """Figure 1 by the demo's code, figure 3 for every set that has curves."""
    from decoupledgp.demo import figure_1

    path = folder / "figure1.png"
    if not path.exists():
        figure_1(path)
    blocks: list[Block] = [Heading("Figures")]
    blocks.append(
        Figure(
            path, "Figure 1: sinc with one basis of 10, with bases of 100 and 10, with one of 100."
        )
    )
    for data in results.sets:
        output = figure_3_output(results, data)
        if output is not None:
            path = folder / f"figure3-{data}.svg"
            draw_figure_3(results, data, output, path)
            title = f"Figure 3: {SETS[data].title}, output {output}, on a part of the test rows"
            blocks.append(Figure(path, f"{title}; marks: where other systems ended."))
    if len(blocks) == 2:
        blocks.append(Text(f"Figure 3: {NOT_RUN}."))
    return blocks


def _complete(results: Results, sets: list[str]) -> list[Block]:
    """The appendix: every output of every system."""
    blocks: list[Block] = [Heading("Complete results")]
    for data in sets:
        blocks += [Heading(SETS[data].title, 3), Text(_caveat(data))]
        for measure, title in NAMES.items():
            blocks += [Text(f"{title}:"), _beside_paper(results, data, measure)]
        for measure, title in ALONE.items():
            systems = [name for name in SYSTEMS if _has(results, data, name, measure)]
            head = ["output", *(SYSTEMS[name].title for name in systems)]
            rows = [
                [f"Y_{k}", *(results.cell(data, k, name, measure) for name in systems)]
                for k in outputs_of(data)
            ]
            if systems:
                blocks += [Text(f"{title}:"), Table(head, rows)]
            if measure == "seconds":
                blocks += _side_by_side(results, data)
        blocks += _first_distances(results, data)
    return blocks


def _first_distances(results: Results, data: str) -> list[Block]:
    """Which first length-scales the systems chose."""
    rows = []
    for system in (name for name in PUBLISHED_SYSTEMS if _has(results, data, name, "nmse")):
        cells = [SYSTEMS[system].title]
        for distances in DISTANCES:
            outputs = [
                f"Y_{k}"
                for k in outputs_of(data)
                if any(r.get("distances") == distances for r in results.of(data, k, system))
            ]
            cells.append(", ".join(outputs) or "–")
        rows.append(cells)
    head = ["system", "median distance in each input", "median distance between rows"]
    chosen = any(record.get("distances") for record in results.records)
    return (
        [Text("What the length-scales began with:"), Table(head, rows)] if rows and chosen else []
    )


def _has(results: Results, data: str, system: str, measure: str) -> bool:
    return bool(results.over_outputs(data, system, measure)[0])


def _beside_paper(results: Results, data: str, measure: str) -> Table:
    """Return one appendix table, each of the paper's systems with the paper's number beside it."""
    head, rows = ["output"], [[f"Y_{k}"] for k in outputs_of(data)]
    last = [["mean"], ["std"]]
    for system, about in _columns(results, data).items():
        values = results.over_outputs(data, system, measure)[0]
        head.append(about.title)
        for row, k in zip(rows, outputs_of(data), strict=True):
            row.append(results.cell(data, k, system, measure))
        complete = len(values) == SETS[data].n_outputs
        for line, value in zip(last, _mean_and_std(values), strict=True):
            line.append(number(measure, value) if complete else NOT_RUN if not values else "–")
        if published_cell(data, 1, system, measure) == "–":
            continue
        head.append("the paper's")
        for row, k in zip(rows, outputs_of(data), strict=True):
            row.append(published_cell(data, k, system, measure))
        for line, statistic in zip(last, published_statistics(data, system, measure), strict=True):
            line.append(statistic)
    return Table(head, [*rows, *last])


def _mean_and_std(values: list[float]) -> tuple[float | None, float | None]:
    return (float(np.mean(values)), float(np.std(values))) if values else (None, None)


def _long_rows(results: Results) -> list[dict[str, Any]]:
    """One line per result, with the paper's numbers where it has them."""
    lines = []
    for record in results.records:
        line = {key: record.get(key) for key in ("data", "output", "system", "seed", "size")}
        for key in ("nmse", "bound", *ALONE, *BESIDE):
            value = record.get(key)
            line[key] = json.dumps(value) if isinstance(value, (dict, list)) else value
        for measure in NAMES:
            paper = published_cell(record["data"], record["output"], record["system"], measure)
            line[f"paper_{measure}"] = None if paper == "–" else paper
        lines.append(line)
    return lines


def _curve_rows(results: Results) -> list[dict[str, Any]]:
    """One line per checkpoint."""
    return [
        {**{key: record[key] for key in ("data", "output", "system", "seed")}, **point}
        for record in results.records
        for point in record.get("curve", [])
    ]


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        if rows:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
