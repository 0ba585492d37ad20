"""The file of results and the scores."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import norm

from benchmarks.peers.scores import Prediction, score
from benchmarks.store import Store

KEY = {"set": "kin40k", "fold": 0, "peer": "ours", "times": 1.0}


def test_results_are_found_again(tmp_path):
    store = Store(tmp_path / "new" / "results.jsonl")
    assert store.get(KEY) is None
    store.add(KEY, {"RMSE": np.float64(0.25)})
    store.add({**KEY, "fold": 1}, {"error": "ValueError: no"})
    again = Store(store.path)
    assert len(again) == 2
    assert again.get(dict(reversed(KEY.items()))) == {"RMSE": 0.25}
    assert {**KEY, "fold": 1} in again
    assert {**KEY, "times": 5.0} not in again


def test_a_line_cut_short_is_run_again_and_those_after_it_are_kept(tmp_path):
    store = Store(tmp_path / "results.jsonl")
    for fold in (0, 1):
        store.add({**KEY, "fold": fold}, {"RMSE": float(fold)})
    text = store.path.read_text()
    store.path.write_text(text[: len(text) - 12])
    cut = Store(store.path)
    assert len(cut) == 1
    cut.add({**KEY, "fold": 2}, {"RMSE": 2.0})
    again = Store(store.path)
    assert {key["fold"] for key, _ in again} == {0, 2}


def test_a_file_of_something_else_is_an_error(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text('{"a": 1}\n')
    with pytest.raises(ValueError, match="line 1 is no result"):
        Store(path)


def test_scores_against_their_definitions():
    rng = np.random.default_rng(0)
    y, mean = rng.standard_normal((2, 50, 3))
    std = rng.uniform(0.5, 2, (50, 3))
    scores = score(y, Prediction(1, mean, std))
    assert_allclose(scores["RMSE"], np.linalg.norm(y - mean) / 150**0.5)
    fractions = [np.mean((y - mean)[:, p] ** 2) / np.var(y[:, p]) for p in range(3)]
    assert_allclose(scores["nMSE"], np.mean(fractions))
    assert_allclose(scores["NLL"], -norm(mean, std).logpdf(y).mean())
    for level in (0.5, 0.8, 0.95):
        low, high = norm(mean, std).interval(level)
        assert_allclose(scores[f"{level:.0%}"], np.mean((y > low) & (y < high)))
    assert_allclose(scores["width"], np.mean(high - low))


def test_scores_of_intervals_without_a_distribution():
    y, mean = np.arange(4.0)[:, None], np.zeros((4, 1))
    scores = score(y, Prediction(1, mean, None, {0.95: (mean - 1, mean + 1.5)}))
    assert scores["95%"] == 0.5
    assert scores["width"] == 2.5
    assert not {"NLL", "50%"} & set(scores)


def test_scores_refuse_means_that_are_not_numbers():
    with pytest.raises(FloatingPointError, match="1 of 2 means"):
        score(np.ones((2, 1)), Prediction(1, np.array([[np.nan], [1.0]])))
