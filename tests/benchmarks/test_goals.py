"""Verdicts follow from the results, over the outputs that all systems in question have."""

import pytest
from made_up import record

from benchmarks.paper.goals import goals, seed_rows
from benchmarks.paper.records import Key
from benchmarks.paper.results import NOT_RUN, Results

FIVE = {"svdgp": 0.1, "svi": 0.4, "ivsgpr": 0.3, "vsgpr": 0.2, "gpr": 0.5}


def results(errors, outputs=(1, 2), seed=0, **more):
    """Return records with these errors; bounds are the higher the lower an error is."""
    return [
        record(Key("mujoco1", k, system, seed, "toy"), error, bound=-1e5 * error, **more)
        for system, error in errors.items()
        for k in outputs
    ]


def judged(records):
    return {goal.text: goal for goal in goals(Results(records, "toy"), "mujoco1")}


def test_nothing_run_is_nothing_judged():
    for goal in judged([]).values():
        assert (goal.found, goal.outputs, goal.met) == (NOT_RUN, "–", "–")


def test_order_and_ratios():
    found = judged(results(FIVE))
    for text in (
        "SVDGP has the lowest nMSE of the five",
        "SVDGP has the highest bound of the five",
    ):
        assert found[text].met == "yes"
        assert found[text].found.startswith("SVDGP (")
    ratio = found["nMSE of SVDGP / SVI ≤ 0.6"]
    assert (ratio.paper, ratio.found, ratio.outputs, ratio.met) == ("0.44", "0.250", "1, 2", "yes")
    found = judged(results({**FIVE, "svi": 0.05}))
    assert found["SVDGP has the lowest nMSE of the five"].found == "SVI (0.0500)"
    for text in (
        "SVDGP has the lowest nMSE of the five",
        "SVDGP has the highest bound of the five",
        "nMSE of SVDGP / SVI ≤ 0.6",
    ):
        assert found[text].met == "no"


def test_only_outputs_that_both_have_count():
    records = [*results({"svdgp": 0.1}, (1, 2)), *results({"svdgp": 0.9}, (3,))]
    found = judged([*records, *results({"defaults": 0.05}, (2,))])
    ratio = found["nMSE of our defaults / SVDGP ≤ 0.5"]
    assert (ratio.found, ratio.outputs, ratio.met) == ("0.500", "2", "yes")


@pytest.mark.parametrize(("coverage", "met"), [(0.92, "no"), (0.95, "yes"), (0.98, "no")])
def test_coverage(coverage, met):
    found = judged(results({"defaults": 0.1}, coverage=coverage))
    assert found["95% intervals of our defaults cover 93% to 97% on average"].met == met


def test_only_seeds_that_both_have_count():
    """Another seed is another split: its test rows are others."""
    records = [*results({"svdgp": 0.1, "svi": 0.2}), *results({"svdgp": 0.9}, seed=1)]
    assert judged(records)["nMSE of SVDGP / SVI ≤ 0.6"].found == "0.500"


def test_the_paper_has_nothing_on_the_change_of_velocity():
    changed = [{**one, "data": "mujoco1-change"} for one in results(FIVE)]
    for goal in goals(Results(changed, "toy"), "mujoco1-change"):
        assert goal.paper == "–"


def test_an_output_with_two_seeds_counts_once():
    records = [*results({"svdgp": 0.1, "svi": 0.4}), *results({"svdgp": 0.3, "svi": 0.4}, (1,), 1)]
    found = judged(records)["nMSE of SVDGP / SVI ≤ 0.6"]
    assert found.found == "0.375"  # the mean of 0.2 and 0.1 over 0.4
    assert found.outputs == "1, 2"


def test_seeds_are_compared_with_the_spread_over_outputs():
    records = [
        *results({"svi": 0.1}, (1,)),
        *results({"svi": 0.13}, (1,), seed=1),
        *results({"svi": 0.3}, (2,)),
        *results({"gpr": 0.3}, (2,)),
    ]
    assert seed_rows(Results(records, "toy"), "mujoco1") == [["SVI", "1", "0.0300", "0.0925"]]
