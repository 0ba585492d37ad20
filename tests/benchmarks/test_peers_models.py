"""Every peer on 200 rows with a short clock: shapes, scores and time."""

import importlib.util

import numpy as np
import pytest

from benchmarks.peers import exact, gps, measure, ours
from benchmarks.peers.families import PEERS
from benchmarks.peers.scores import Prediction, score
from benchmarks.peers.trees import predict_by_default
from benchmarks.tables import Split

CLOCK = 0.4


def split_of(outputs):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((260, 2))
    targets = [np.sin(2 * X[:, 0]), X[:, 0] * X[:, 1]][:outputs]
    Y = np.column_stack(targets) + 0.05 * rng.standard_normal((260, outputs))
    Y = (Y - Y.mean(0)) / Y.std(0)
    return Split(X[:200], Y[:200], X[200:], Y[200:])


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("name", list(PEERS))
def test_peer(name, outputs):
    if name == "xgboost":
        pytest.importorskip("xgboost")
    if name == "ours":
        ours.warm_up()  # compiles, where nothing has yet
    split = split_of(outputs)
    times = [1.0] if name == "ours" else [1.0, 2.0]
    predictions = list(PEERS[name].predict(split, 0, CLOCK, times))
    assert [prediction.times for prediction in predictions] == times
    for prediction in predictions:
        scores = score(split.y_test, prediction)
        assert scores["nMSE"] < 1.5  # a busy machine may have had time for a single step
        assert scores["width"] > 0
        assert ("NLL" in scores) == (PEERS[name].kind == "gp")
        assert prediction.seconds > 0  # how many is not for a test to say: the machine may be busy


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("settings", [gps.SVGP, gps.NATURAL, gps.ORTHOGONAL])
def test_variational_peers_learn(settings):
    split = split_of(2)
    few = settings._replace(inducing=30, mean_points=min(settings.mean_points, 30), rate=0.1)
    training = gps.Training(split, 0, few)
    for _ in range(40):
        training.step()
    scores = score(split.y_test, Prediction(1, *training.predict(split.X_test)))
    assert scores["nMSE"] < 0.3
    assert scores["NLL"] < 1.2  # that of N(0, 1) is 1.42


def test_variational_readings_come_from_one_run():
    one, two = gps.predict_by_clock(split_of(1), 0, 0.2, [2.0, 1.0], gps.SVGP._replace(batch=32))
    assert one.seconds >= 0.2
    assert two.seconds >= 0.4
    assert two.extra["steps"] > one.extra["steps"]


def test_exact_takes_more_rows_with_more_time(monkeypatch):
    monkeypatch.setattr(exact, "FIRST_ROWS", 8)
    split = split_of(1)
    little, much = exact.predict_by_clock(split, 0, 1e-3, [1.0, 5000.0])
    assert little.extra["rows"] == 8 < 64 <= much.extra["rows"]  # all 200 where nothing else runs
    assert score(split.y_test, much)["RMSE"] < score(split.y_test, little)["RMSE"]


def test_a_peer_that_fails_gives_results_that_say_so(monkeypatch):
    def fails(split, fold, clock, times):
        yield from PEERS["exact"].predict(split, fold, clock, times[:1])
        raise RuntimeError("not positive definite\nand much more")

    monkeypatch.setattr(measure, "load", lambda name, fold, folder: split_of(1))
    monkeypatch.setitem(measure.PEERS, "svgp", PEERS["svgp"]._replace(predict=fails))
    first, second = measure.by_clock("svgp", "pol", 0, None, 0.05, [1.0, 5.0])
    assert first["RMSE"] < 1
    assert second["error"] == "RuntimeError: not positive definite"


def test_boosting_as_it_comes():
    split = split_of(2)
    assert score(split.y_test, predict_by_default(split, 0))["nMSE"] < 0.5


def test_tests_do_not_need_the_other_library():
    """Importing the peers must not import XGBoost."""
    assert importlib.util.find_spec("benchmarks.peers.boosters") is not None
    with open(importlib.util.find_spec("benchmarks.peers.boosters").origin) as file:
        assert not any(line.startswith("import xgboost") for line in file)
