"""Tables of results, goals and who is ahead."""

import os

import pytest

from benchmarks import uci
from benchmarks.peers.__main__ import clock_of, run
from benchmarks.peers.defaults import defaults_table, goals
from benchmarks.peers.families import PEERS
from benchmarks.peers.measure import apart
from benchmarks.peers.report import Plan, ahead, equal_time_tables, key_of, summary
from benchmarks.store import Store

GOOD = {"RMSE": 0.1, "nMSE": 0.01, "NLL": -0.9, "95%": 0.95, "seconds": 9.0, "MB": 400.0}
GOOD |= {"N": 900, "D": 2, "P": 1}


@pytest.fixture
def plan():
    return Plan(["pol", "protein"], list(PEERS), [0, 1], 10.0, [1.0, 5.0])


@pytest.fixture
def store(tmp_path, plan):
    """On pol ours is ahead of all but trees; on protein only ours has run."""
    store = Store(tmp_path / "results.jsonl")
    for fold in (0, 1):
        for peer in PEERS:
            for times in (1.0,) if peer == "ours" else (1.0, 5.0):
                better = {"ours": 0, "histgrad": -0.05}.get(peer, 0.1 / times)
                result = {**GOOD, "RMSE": 0.1 + better + 0.02 * fold, "NLL": -0.9 + better}
                if peer == "histgrad":
                    del result["NLL"]
                if peer == "svgp-natural":
                    result = {"error": "NotPSDError: no luck"}
                store.add(key_of(plan, peer, "pol", fold, times), result)
        store.add(key_of(plan, "ours", "protein", fold, 1.0), {**GOOD, "seconds": 12.5})
    return store


def row(text, start):
    return next(line for line in text.splitlines() if line.startswith(f"| {start}"))


def test_tables(store, plan):
    text = equal_time_tables(store, plan)
    equal, more, unrun, _ = (part for part in text.split("## ") if part)
    assert equal.startswith("pol, 1× our time (900 training rows, 2 inputs)")
    assert "0.1100 ± 0.0141" in row(equal, "DecoupledGPRegressor")
    assert "0.2100 ± 0.0141" in row(equal, "GPyTorch SVGP-1024, Adam")
    assert "0.1300 ± 0.0141" in row(more, "GPyTorch SVGP-1024, Adam")
    assert "natural gradient: failed (NotPSDError: no luck)" in equal
    assert row(unrun, "XGBoost").count("not run") == 9


def test_who_is_ahead(store, plan):
    others = ["svgp", "svgp-natural", "orthogonal", "exact"]
    assert ahead(store, plan, "pol", others, 1) is True
    assert ahead(store, plan, "protein", others, 1) is None
    text = summary(store, plan)
    equal, more = (row(part, "pol") for part in text.split("## ")[1:])
    assert equal.endswith("| yes | 0.0600 (histgrad) | yes |")
    assert more.endswith("| -0.8800 (orthogonal) | yes | 0.0600 (histgrad) | yes |")
    assert "| 0.1100 | 0.1300 (svgp) | 0.1300 (orthogonal) | -0.9000 | -0.8800 (svgp) |" in more
    assert "five times" not in summary(store, plan._replace(times=[1.0]))
    assert "equal time: 1 of 2 sets (1 not run to the end)" in text
    worse = {**GOOD, "RMSE": 0.5}
    for fold in (0, 1):
        store.add(key_of(plan, "ours", "pol", fold, 1.0), worse)
    assert ahead(store, plan, "pol", others, 1) is False
    for fold in (0, 1):
        store.add(key_of(plan, "ours", "pol", fold, 1.0), {"error": "it broke"})
    assert ahead(store, plan, "pol", others, 1) is False


def test_peers_get_the_time_that_ours_took(store, plan):
    assert clock_of(store, plan, "pol", 0) == 10.0
    assert clock_of(store, plan, "protein", 0) == 12.5
    assert clock_of(store, plan, "kin40k", 0) == 10.0


def test_what_is_there_is_not_run_again(store, plan, tmp_path):
    size = len(store)
    run(store, plan, "svgp", "pol", 0, tmp_path / "no such folder")
    assert len(store) == size


def test_a_process_that_dies_is_a_result():
    assert apart(os._exit, 3)["error"].startswith("BrokenProcessPool")


def test_goals():
    steps, boosting = {"seconds": 10.0}, {"nMSE": 0.02}
    met = dict(goals("kin40k", GOOD, steps, boosting))
    assert list(met.values()) == [True] * 5
    assert dict(goals("kuka", GOOD, steps, boosting))["mean nMSE below gradient boosting's"]
    bad = {**GOOD, "RMSE": 0.2, "95%": 0.98, "seconds": 11.0, "MB": 2000.0}
    missed = dict(goals("kin40k", bad, steps, boosting))
    assert [text.split()[0] for text, good in missed.items() if good is False] == [
        "RMSE",
        "95%",
        "seconds",
        "peak",
    ]
    assert set(dict(goals("protein", None, None, None)).values()) == {None}


def test_table_of_defaults_that_have_not_been_run(tmp_path):
    text = defaults_table(Store(tmp_path / "none.jsonl"), ["kuka"])
    assert row(text, "kuka | DecoupledGPRegressor()").count("not run") == 9


def test_verdict_on_the_uci_sets(tmp_path):
    fine = {**GOOD, "rows": 2000, "NaN": 0, "warnings": 1}
    results = {"a": fine, "b": {**fine, "95%": 0.85}, "c": {**fine, "rows": 50, "95%": 0.5}}
    text = uci.judge({**results, "d": {"error": "ValueError: no"}})
    assert "run to the end: 3 of 38" in text
    assert "1 of 2 sets with more than 1,000 rows; outside: b" in text
    store = Store(tmp_path / "uci.jsonl")
    store.add({"set": "uci10/wine", "fold": 0, "peer": uci.MODELS[0]}, fine)
    text = uci.report(store, ["uci10/wine"])
    assert row(text, "uci10/wine").endswith("| 1 | 0 | 9 | not run | not run |")
