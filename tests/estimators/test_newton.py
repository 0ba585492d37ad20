"""Other likelihoods by Newton's method, as a user meets them."""

import warnings
from functools import lru_cache

import numpy as np
import pytest
from gpytorch.likelihoods import BernoulliLikelihood, LaplaceLikelihood, StudentTLikelihood
from numpy.testing import assert_array_equal

from decoupledgp import DecoupledGPRegressor
from decoupledgp.estimators.solved import SitesRun, run
from decoupledgp.estimators.solved.sites import _spread

pytestmark = pytest.mark.usefixtures("few_groups")


def truth(X):
    return 2 * np.sin(2 * X[:, 0]) * np.cos(X[:, 1])


def chance(X):
    return 0.5 * (1 + np.tanh(truth(X)))


def rows(n, kind, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, 2))
    if kind == "labels":
        return X, (rng.random(n) < chance(X)).astype(float)
    return X, truth(X) + 0.1 * rng.standard_t(2, n)


NEW, LABELS_NEW = rows(1500, "labels", seed=1)
_, Y_NEW = rows(1500, "tails", seed=1)


@lru_cache
def labelled(n):
    X, y = rows(n, "labels")
    return DecoupledGPRegressor(likelihood=BernoulliLikelihood(), random_state=0).fit(X, y)


@pytest.mark.parametrize(("n", "most"), [(500, 0.15), (1500, 0.1)])
def test_labels(n, most):
    model = labelled(n)
    assert isinstance(model._run, SitesRun)
    mean, std = model.predict(NEW, return_std=True)
    assert np.sqrt(np.mean((mean - chance(NEW)) ** 2)) < most
    assert np.all((mean > 0) & (mean < 1))
    assert np.allclose(std, np.sqrt(mean * (1 - mean)), atol=1e-3)
    bounds = [record["elbo"] for record in model.history_]
    assert bounds[-1] > bounds[0]
    assert np.isfinite(model.elbo(NEW, LABELS_NEW))
    assert set(np.unique(model.sample_y(NEW[:20], 5))) <= {0.0, 1.0}


def test_the_bound_of_the_history_is_that_of_elbo():
    X, y = rows(500, "labels")
    assert np.isclose(labelled(500).history_[-1]["elbo"], labelled(500).elbo(X, y), rtol=1e-3)


def test_newton_is_ahead_of_as_many_gradients():
    X, y = rows(500, "labels")
    gradient = DecoupledGPRegressor(
        likelihood=BernoulliLikelihood(), random_state=0, max_iter=30
    ).fit(X, y)
    assert labelled(500).history_[-1]["elbo"] > gradient.elbo(X, y)


@pytest.mark.parametrize("likelihood", [StudentTLikelihood, LaplaceLikelihood])
def test_outliers_do_not_bend_the_mean(likelihood):
    X, y = rows(1500, "tails")
    robust = DecoupledGPRegressor(likelihood=likelihood(), random_state=0).fit(X, y)
    plain = DecoupledGPRegressor(random_state=0).fit(X, y)
    errors = [np.mean((m.predict(NEW) - truth(NEW)) ** 2) for m in (robust, plain)]
    assert errors[0] < errors[1]
    low, high = robust.predict_interval(NEW, 0.9, conformal=True)
    assert 0.84 < np.mean((low < Y_NEW) & (high > Y_NEW)) < 0.96


@pytest.mark.parametrize("which", [0, 1])
def test_rows_that_are_left_out_for_more_functions(which, monkeypatch):
    """Too little work for all rows: some of them with a function each, or more that share functions."""
    monkeypatch.setattr(run, "MOST_WORK", 10 * 1600**2)
    monkeypatch.setattr(run, "best_share", lambda kernel, x, noise, shares: shares[which])
    X, y = rows(3000, "labels")
    model = DecoupledGPRegressor(likelihood=BernoulliLikelihood(), random_state=0).fit(X, y)
    assert model.n_rows_ == (1900, 3000)[which]
    assert 0 <= (1900, 1449)[which] - model.n_mean_basis_ <= 5  # a cell or two without rows
    assert np.sqrt(np.mean((model.predict(NEW) - chance(NEW)) ** 2)) < 0.1


def test_more_rows_than_functions_and_two_outputs():
    X, y = rows(1500, "labels")
    Y = np.column_stack([y, 1 - y])
    model = DecoupledGPRegressor(200, 60, likelihood=BernoulliLikelihood(), random_state=0)
    mean = model.fit(X, Y).predict(NEW)
    assert model.n_mean_basis_ <= 200
    assert np.sqrt(np.mean((mean[:, 0] - chance(NEW)) ** 2)) < 0.2
    assert np.abs(mean.sum(1) - 1).max() < 0.1


def test_a_stream_goes_on_and_files_keep_it(tmp_path):
    X, y = rows(1600, "labels", seed=3)
    model = DecoupledGPRegressor(likelihood=BernoulliLikelihood(), random_state=0)
    model.fit(X[:1100], y[:1100])
    before = np.mean((model.predict(NEW) - chance(NEW)) ** 2)
    model.partial_fit(X[1100:1400], y[1100:1400])
    model.save(tmp_path / "m.gp")
    loaded = DecoupledGPRegressor.load(tmp_path / "m.gp")
    assert_array_equal(loaded.predict(NEW, return_std=True), model.predict(NEW, return_std=True))
    for one in (model, loaded):
        one.partial_fit(X[1400:], y[1400:])
    assert_array_equal(loaded.predict(NEW), model.predict(NEW))
    assert np.mean((model.predict(NEW) - chance(NEW)) ** 2) < 1.1 * before


def test_weights_of_labels():
    """Labels that are wrong in half of the space count for nothing there."""
    X, y = rows(600, "labels")
    wrong = X[:, 0] > 0
    y = np.where(wrong & (np.arange(600) % 2 == 0), 1 - y, y)
    weights = np.where(wrong & (np.arange(600) % 2 == 0), 1e-6, 1.0)
    model = DecoupledGPRegressor(likelihood=BernoulliLikelihood(), random_state=0)
    plain = np.mean((model.fit(X, y).predict(NEW) - chance(NEW)) ** 2)
    assert np.mean((model.fit(X, y, weights=weights).predict(NEW) - chance(NEW)) ** 2) < 0.7 * plain
    with pytest.raises(ValueError, match="noise_variance is for Gaussian noise"):
        model.fit(X, y, noise_variance=np.ones(600))


def test_a_callback_ends_it():
    X, y = rows(300, "labels")
    model = DecoupledGPRegressor(
        likelihood=BernoulliLikelihood(), random_state=0, callbacks=[lambda *_: True]
    ).fit(X, y)
    assert len(model.history_) == 1
    assert np.isfinite(model.predict(NEW)).all()


def test_labels_that_are_none_are_refused_and_nothing_lost():
    X, y = rows(300, "labels")
    model = DecoupledGPRegressor(likelihood=BernoulliLikelihood(), random_state=0).fit(X, y)
    before = model.predict(NEW)
    for method in (model.fit, model.partial_fit):
        with pytest.raises(ValueError, match="at row 0"):
            method(X, y + 2)
    assert_array_equal(model.predict(NEW), before)


def test_one_row_at_a_time_from_the_first(tmp_path):
    """The first rows are learnt from together with each call, also after a file."""
    X, y = rows(40, "tails")
    model = DecoupledGPRegressor(likelihood=StudentTLikelihood(), random_state=0)
    for row in range(12):
        model.partial_fit(X[row : row + 1], y[row : row + 1])
        assert np.isfinite(model.predict(NEW[:5], return_std=True)).all()
    model.save(tmp_path / "m.gp")
    loaded = DecoupledGPRegressor.load(tmp_path / "m.gp")
    for one in (model, loaded):
        one.partial_fit(X[12:], y[12:])
        assert one.n_rows_ == one.n_mean_basis_ == 40
    assert_array_equal(loaded.predict(NEW), model.predict(NEW))


def test_ctrl_c_in_a_later_round_leaves_the_last_whole_one(monkeypatch):
    X, y = rows(300, "labels")
    seen = []

    def keep(model, record):
        seen.append(model.predict(NEW))

    from decoupledgp.estimators.solved import sites

    original, calls = sites.learn_hyperparameters, []

    def interrupted(kernel, *arguments, again=False, **options):
        calls.append(again)
        original(kernel, *arguments, again=again, **options)
        if again:
            raise KeyboardInterrupt
        return 0

    monkeypatch.setattr(sites, "learn_hyperparameters", interrupted)
    model = DecoupledGPRegressor(likelihood=BernoulliLikelihood(), random_state=0, callbacks=[keep])
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert any(calls)
    assert_array_equal(model.predict(NEW), seen[-1])


def test_the_spread_of_targets_that_are_mostly_one_value():
    y = np.zeros((1000, 2))
    y[:200, 0] = np.linspace(1, 5, 200)
    y[:, 1] = np.linspace(0, 1, 1000)
    spread = _spread(y)
    assert 1 < spread[0] < 5
    assert abs(spread[1] - 0.5) < 0.01
    assert _spread(np.zeros((10, 1))) > 0


def test_mostly_zero_targets_are_learnt():
    X, _ = rows(800, "tails")
    y = np.maximum(truth(X) - 1, 0)
    assert np.mean(y == 0) > 0.7
    model = DecoupledGPRegressor(likelihood=StudentTLikelihood(), random_state=0).fit(X, y)
    expected = np.maximum(truth(NEW) - 1, 0)
    assert np.mean((model.predict(NEW) - expected) ** 2) < 0.1 * np.var(expected)


def test_reversed_and_read_only_targets():
    X, y = rows(300, "labels")
    model = DecoupledGPRegressor(likelihood=BernoulliLikelihood(), random_state=0)
    y.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X[::-1], y[::-1]).partial_fit(X[::-1], y[::-1])
    model.fit(X, y)
