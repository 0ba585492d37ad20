"""`DecoupledGPRegressor()` with little time, little work for many rows, or Ctrl-C."""

import logging
import signal
import time

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from decoupledgp import DecoupledGPRegressor
from decoupledgp.estimators.solved import model as model_module
from decoupledgp.estimators.solved import run
from waves import NEW, X, Y, fitted, nmse

pytestmark = pytest.mark.usefixtures("few_groups")


def test_time_is_kept():
    start = time.perf_counter()
    model = DecoupledGPRegressor(random_state=0, max_seconds=3).fit(X, Y)
    assert time.perf_counter() - start < 15  # of a machine that others may share
    assert nmse(model, NEW) < 0.1


def test_ctrl_c_before_the_first_step_leaves_what_was():
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    model = DecoupledGPRegressor(random_state=0).fit(X[:200], Y[:200])
    before = model.predict(NEW)
    wide = np.column_stack([X, X])
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            model.fit(wide, Y)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGINT, usual)
    assert_array_equal(model.predict(NEW), before)


def test_a_large_table_is_thinned(monkeypatch, caplog):
    monkeypatch.setattr(run, "MOST_ROWS", 1500)
    with caplog.at_level(logging.INFO, "decoupledgp"):
        model = DecoupledGPRegressor(random_state=0).fit(X, Y)
    assert model.n_rows_ == 1500
    assert "1,500 random rows of 4,000" in caplog.text


def test_a_covariance_from_some_of_the_rows_is_that_of_all(monkeypatch):
    """Each of 2,000 rows of 4,000 stands for two."""
    _, std = fitted().predict(NEW, return_std=True)
    monkeypatch.setattr(model_module, "COV_ROWS", 2000)
    monkeypatch.setattr(model_module, "COV_ROWS_EACH", 1)
    model = DecoupledGPRegressor(random_state=0).fit(X, Y)
    assert_allclose(model._run.cov_kl, fitted()._run.cov_kl, rtol=0.05)
    assert_allclose(model._run.cov_bound, fitted()._run.cov_bound, rtol=0.1)
    assert_allclose(np.median(model.predict(NEW, return_std=True)[1] / std), 1, atol=0.02)


@pytest.mark.parametrize("outputs", [1, 2])
def test_too_little_work_for_all_rows(outputs, monkeypatch):
    """Noisy rows are all taken with few functions, clean ones of a rough function in part."""
    monkeypatch.setattr(run, "MOST_WORK", (1 + run.OUTPUT_WORK * (outputs - 1)) * 10 * 1600**2)
    rng = np.random.default_rng(0)
    some = rng.uniform(-3, 3, (3500, 2))
    clean = np.sin(9 * some[:, :1]) * np.cos(8 * some[:, 1:]) * np.ones(outputs)
    noisy = some[:, :1] + 5 * rng.standard_normal((3500, outputs))
    rows = [DecoupledGPRegressor(random_state=0).fit(some, y).n_rows_ for y in (clean, noisy)]
    assert rows == [1600 + 350, 3500]


def test_a_long_time_allows_more_than_the_default(monkeypatch):
    monkeypatch.setattr(run, "MOST_WORK", 10 * 1100**2)
    short, long = (DecoupledGPRegressor(max_seconds=s, random_state=0) for s in (None, 100))
    assert short.fit(X, Y).n_mean_basis_ < long.fit(X, Y).n_mean_basis_ == 4000


@pytest.mark.parametrize(("functions", "share"), [(1100, 0.95), (4000, 0.7)])
def test_the_means_part_of_the_time(functions, share, monkeypatch):
    """Where rows share functions nothing is left to do after the mean; else rows held out are to join."""
    solve, given = run.solve_mean, []

    def spy(*problem, seconds, **options):
        given.append(seconds)
        return solve(*problem, seconds=seconds, **options)

    monkeypatch.setattr(run, "solve_mean", spy)
    model = DecoupledGPRegressor(functions, max_seconds=1000, random_state=0).fit(X, Y)
    assert 0.9 * share * 1000 < given[0] < share * 1000
    assert model._run.seconds < 500
