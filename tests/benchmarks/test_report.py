"""The report says what was measured, what was not, and what the paper has; the paper's numbers are right."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest
from made_up import complete

from benchmarks.complexity import SWEEPS, Curve, draw, table
from benchmarks.costs import SYSTEMS as COSTS
from benchmarks.paper.figures import draw_figure_3, figure_3_output
from benchmarks.paper.protocol import PROTOCOLS
from benchmarks.paper.published import COMPLEXITY, PUBLISHED, ROWS, SYSTEMS
from benchmarks.paper.records import Records
from benchmarks.paper.report import write_report
from benchmarks.paper.results import CONSTANT, Results, as_printed

TOY = PROTOCOLS["toy"]
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360"
    "0000000200015e21bc330000000049454e44ae426082"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which figure 1 is drawn already."""
    (tmp_path / "figure1.png").write_bytes(PIXEL)
    return tmp_path


@pytest.mark.parametrize(("data", "measure"), PUBLISHED)
def test_published_tables_have_the_means_that_the_paper_prints(data, measure):
    published = PUBLISHED[data, measure]
    assert published.values.shape == (7 if "kuka" in data else 9, len(SYSTEMS))
    np.testing.assert_allclose(published.values.mean(0), published.mean, atol=1e-3)
    np.testing.assert_allclose(published.values.std(0), published.std, atol=1e-3)
    assert set(COMPLEXITY) == set(SYSTEMS)
    assert np.isclose(ROWS[data][0] / sum(ROWS[data]), 0.9, atol=1e-3)


def test_published_numbers_are_found_by_system_and_output():
    assert PUBLISHED["kuka1", "nmse"].of("svdgp", 1) == 0.058
    assert PUBLISHED["mujoco2", "bound"].of("gpr", 9) == -37673.328


def test_a_report_without_results_says_so(folder: Path):
    markdown = write_report([], TOY, folder)[0].read_text()
    assert "0 results" in markdown
    assert "Figure 3: not run" in markdown
    assert "0.072 ± 0.013" in markdown  # the paper's numbers stand there all the same


def test_means_over_unequal_outputs_are_not_set_side_by_side(folder: Path):
    records = [*complete("mujoco1", 9, ["svdgp"]), *complete("mujoco1", 2, ["svi"])]
    assert "not over the same outputs" in write_report(records, TOY, folder)[0].read_text()
    first, second = ([r] for r in list(complete("mujoco1", 2, ["svdgp"]))[:2])
    second[0] |= {"system": "svi", "broken": [0.1], "rate": 0.01, "commit": "b"}
    markdown = write_report([{**first[0], "commit": "a"}, *second], TOY, folder)[0].read_text()
    assert "not over the same outputs" in markdown  # as many, but others
    assert "SVI on Y_2, seed 0, broke down with the γ_0 chosen (0.1)" in markdown
    assert "commits a, b" in markdown
    equal = complete("mujoco1", 9, ["svdgp", "svi"])
    assert "not over the same outputs" not in write_report(equal, TOY, folder)[0].read_text()


def test_outputs_that_were_not_learnt_alone_are_named(folder: Path):
    records = list(complete("mujoco1", 4, ["svdgp", "svi"]))
    assert "at a time" not in write_report(records, TOY, folder)[0].read_text()
    alone = ("svdgp", 1), ("svi", 1), ("svi", 2)
    records = [r | {"together": 1 + ((r["system"], r["output"]) not in alone)} for r in records]
    markdown = write_report(records, TOY, folder)[0].read_text()
    text = (
        "2 outputs at a time, each on its share of the cores: Y_2 (SVDGP); Y_3, Y_4 (SVDGP, SVI)."
    )
    assert markdown.count(text) == 2


def test_a_report_holds_our_numbers_and_the_papers(folder: Path):
    records = list(complete("mujoco1", 9, ["svdgp", "svi", "defaults"]))
    paths = {path.name: path for path in write_report(records, TOY, folder)}
    markdown = paths["paper.md"].read_text()
    mean = np.mean([record["nmse"] for record in records[:9]])
    assert f"{mean:.4f}" in markdown
    assert "0.072 ± 0.013" in markdown  # SVDGP's error in table 2
    assert "not run" in markdown
    assert "simulated" in markdown
    assert "Machine: a machine. Run 2026-01-01" in markdown
    assert "not the paper's: expect other numbers" in markdown
    rows = list(csv.DictReader(paths["paper.csv"].open()))
    assert len(rows) == 27
    assert rows[0]["paper_nmse"] == "0.049"
    assert len(list(csv.DictReader(paths["curves.csv"].open()))) == 27 * 4


def test_the_report_says_what_length_scales_began_with(folder: Path):
    first, second = list(complete("mujoco1", 2, ["svdgp"]))
    records = [{**first, "distances": "rows"}, {**second, "distances": "inputs"}]
    markdown = write_report(records, TOY, folder)[0].read_text()
    assert "What the length-scales began with:" in markdown
    assert "| SVDGP | Y_2 | Y_1 |" in markdown
    assert "began with:" not in write_report([first], TOY, folder)[0].read_text()  # not known


def test_the_other_reading_has_a_report_of_its_own(folder: Path):
    protocol = PROTOCOLS["paper-rows"]
    records = complete("mujoco1", 1, protocol.systems, protocol.name)
    markdown = write_report(records, protocol, folder)[0].read_text()
    assert "all begin at the median of the distances between rows" in markdown
    assert "SVDGP, γ_0 = 0.1" in markdown
    assert "--size paper-rows" in markdown
    assert "oosting" not in markdown


def test_figure_3_is_of_the_output_that_the_papers_systems_have():
    records = [*complete("mujoco1", 9, ["svdgp"]), *complete("mujoco1", 1, ["svdgp-0.1"])]
    assert figure_3_output(Results(records, "toy"), "mujoco1") == 9


def test_figure_3_is_the_same_file_for_the_same_results(tmp_path: Path):
    results = Results(complete("mujoco1", 9, ["svdgp", "boosting-timed"]), "toy")
    pictures = [tmp_path / "one.svg", tmp_path / "other.svg"]
    for path in pictures:
        draw_figure_3(results, "mujoco1", 9, path)
    assert pictures[0].read_bytes() == pictures[1].read_bytes()


def test_verdicts_stand_in_the_report_of_the_papers_sizes_only(folder: Path):
    verdict = "SVDGP has the lowest nMSE of the five"
    for protocol in (TOY, PROTOCOLS["paper"]):
        records = complete("mujoco1", 9, SYSTEMS, protocol.name)
        markdown = write_report(records, protocol, folder)[0].read_text()
        assert (verdict in markdown) == (protocol.name == "paper")


def test_the_page_needs_nothing_else(folder: Path):
    records = complete("kuka", 7, ["svdgp", "linear"])
    html = {path.name: path for path in write_report(records, TOY, folder)}["paper.html"]
    sources = re.findall(r'src="([^"]{0,30})', html.read_text())
    assert len(sources) == 2
    assert all(source.startswith("data:image/") for source in sources)
    assert "these are not the paper's data" in html.read_text()
    assert "http" not in html.read_text()


def test_every_sweep_measures_the_size_it_names():
    for sweep in SWEEPS:
        name, basis, *rest = sweep.arguments(12345)
        assert name in COSTS
        assert 12345 in (basis, *rest)
    assert {sweep.system.lower() for sweep in SWEEPS} == set(SYSTEMS)


def test_exponents_stand_beside_table_1(tmp_path: Path):
    sizes = SWEEPS[1].sizes
    curve = Curve(SWEEPS[1], sizes, [1e-9 * m**3 for m in sizes], [1e-3 * m**2 for m in sizes])
    line = table([curve]).splitlines()[-1]
    assert line.endswith("| M_β^3.00 | M_β^3 | M_β^2.00 | M_β^2 |")
    draw([curve], tmp_path / "complexity.svg")
    assert (tmp_path / "complexity.svg").stat().st_size > 1000


def test_the_papers_bounds_are_possible_without_a_gaussians_constant_only():
    """A Gaussian of one variance has at most -½ log(2πe nMSE) per row, targets of variance 1."""
    above = {True: 0, False: 0}
    for name, (n_train, _) in ROWS.items():
        bound, error = (PUBLISHED[name, measure].values for measure in ("bound", "nmse"))
        most = -0.5 * (1 + np.log(error))
        for constant in above:
            above[constant] += np.sum(1e5 * bound / n_train > most - constant * CONSTANT)
    assert above == {True: 137, False: 0}


def test_bounds_are_printed_as_the_papers_are():
    (one,) = Results(list(complete("mujoco1", 1, ["svdgp"])), "toy").records
    assert one["bound"] == pytest.approx(1e5 + 900 * 0.918939, rel=1e-6)
    assert one["curve"][0]["bound"] == pytest.approx(-1e5 + 900 * 0.918939, rel=1e-6)
    assert as_printed({"n_train": 9, "nmse": 0.1}) == {"n_train": 9, "nmse": 0.1}


def test_the_committed_report_is_that_of_the_committed_results(folder: Path):
    root = Path(__file__).parents[2]
    records = Records(root / "benchmarks" / "results" / "paper.jsonl")
    committed = root / "docs" / "paper-report"
    for path in write_report(records, PROTOCOLS["paper"], folder):
        if path.suffix != ".html":  # it has the pictures inside
            assert path.read_text() == (committed / path.name).read_text()
