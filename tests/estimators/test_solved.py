"""`DecoupledGPRegressor()` with nothing else, as a user meets it: solved for, calibrated, online."""

import logging
import signal
import time
import warnings
from functools import lru_cache

import numpy as np
import pytest
from gpytorch.kernels import MaternKernel
from gpytorch.likelihoods import GaussianLikelihood, StudentTLikelihood
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from decoupledgp import DecoupledGPRegressor
from decoupledgp.estimators.solved import SolvedRun, run
from decoupledgp.estimators.solved import model as model_module
from decoupledgp.estimators.solved import stream as stream_module
from decoupledgp.solvers import hyperparameters

RNG = np.random.default_rng(0)


def rows(n, noise=0.1, seed=0, outputs=1):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, 2))
    Y = np.column_stack([np.sin(2 * X[:, 0]) * np.cos(X[:, 1] + k) for k in range(outputs)])
    Y = Y + noise * rng.standard_normal(Y.shape)
    return X, (Y[:, 0] if outputs == 1 else Y)


def truth(X):
    return np.sin(2 * X[:, 0]) * np.cos(X[:, 1])


def nmse(model, X):
    return np.mean((model.predict(X) - truth(X)) ** 2) / np.var(truth(X))


NEW, Y_NEW = rows(2000, seed=1)
X, Y = rows(4000)


@pytest.fixture(autouse=True)
def few_groups(monkeypatch):
    """Fewer neighbourhoods than users have: these functions are easy, and tests are many."""
    monkeypatch.setattr(hyperparameters, "GROUPS", 8)


@lru_cache
def fitted():
    return DecoupledGPRegressor(random_state=0).fit(X, Y)


def test_it_is_solved_for_and_accurate():
    assert isinstance(fitted()._run, SolvedRun)
    assert fitted().n_mean_basis_ == fitted().n_rows_ == 4000
    assert fitted().n_cov_basis_ == 512
    assert nmse(fitted(), NEW) < 0.002


def test_its_intervals_cover_what_they_say():
    mean, std = fitted().predict(NEW, return_std=True)
    z = np.abs(Y_NEW - mean) / std
    assert 0.93 < (z < 1.96).mean() < 0.97
    assert 0.45 < (z < 0.674).mean() < 0.55
    for conformal in (None, False, True):
        low, high = fitted().predict_interval(NEW, 0.8, conformal=conformal)
        assert abs(((low < Y_NEW) & (high > Y_NEW)).mean() - 0.8) < 0.05


def test_intervals_of_errors_that_are_not_normal():
    """Uniform noise: the normal 95% interval holds all of it, that of the held-out rows 95%."""
    rng = np.random.default_rng(1)
    y, y_new = (rng.uniform(-1, 1, n) for n in (len(X), len(NEW)))
    model = DecoupledGPRegressor(500, random_state=0).fit(X, y)
    for level in (0.5, 0.8, 0.95):
        low, high = model.predict_interval(NEW, level)
        assert abs(np.mean((low < y_new) & (y_new < high)) - level) < 0.04
    low, high = model.predict_interval(NEW, conformal=False)
    assert np.mean((low < y_new) & (y_new < high)) > 0.99


def test_held_out_rows_too_few_for_an_interval():
    """400 of them say nothing of 99.9%: the normal width, and at least that of the worst."""
    mean, std = fitted().predict(NEW, return_std=True)
    worst = fitted().calibration_.scores[-1, 0]
    _, high = fitted().predict_interval(NEW, 0.999)
    assert_allclose((high - mean) / std, max(worst, 3.2905), rtol=1e-4)
    assert np.isinf(fitted().predict_interval(NEW, 0.999, conformal=True)[1]).all()


def test_few_rows_are_the_exact_gp():
    """Same hyper-parameters, same mean and standard deviation as scikit-learn's."""
    X, y = rows(300)
    model = DecoupledGPRegressor(random_state=0).fit(X, y)
    assert model.n_cov_basis_ == 300
    assert model.calibration_ is None
    kernel = model.kernel_
    base = kernel.base_kernel.lengthscale.detach().numpy().ravel()
    exact = GaussianProcessRegressor(
        ConstantKernel(kernel.outputscale.item(), "fixed") * RBF(base, "fixed")
        + WhiteKernel(model.likelihood_.noise.item(), "fixed"),
        optimizer=None,
    )
    x_scaler, y_scaler = model._run.x_scaler, model._run.y_scaler
    exact.fit(x_scaler.transform(X), y_scaler.transform(y[:, None])[:, 0])
    mean, std = exact.predict(x_scaler.transform(NEW), return_std=True)
    ours, our_std = model.predict(NEW, return_std=True)
    assert_allclose(ours, y_scaler.inverse(mean[:, None])[:, 0], atol=1e-5)
    assert_allclose(our_std, std * y_scaler.scale[0], rtol=1e-3)
    assert nmse(model, NEW) < 0.02


def test_the_bound_of_the_history_is_that_of_elbo():
    X, y = rows(300)
    model = DecoupledGPRegressor(random_state=0).fit(X, y)
    assert_allclose(model.history_[-1]["elbo"], model.elbo(X, y), rtol=1e-4)


def test_more_rows_than_functions():
    """Rows that share functions add to what as many functions know from rows of their own."""
    X, y = rows(4000, noise=1.0)
    model = DecoupledGPRegressor(500, random_state=0).fit(X, y)
    assert model.n_mean_basis_ <= 500
    assert model.n_rows_ == 4000
    alone = DecoupledGPRegressor(random_state=0).fit(X[:500], y[:500])
    assert nmse(model, NEW) < 0.5 * nmse(alone, NEW)


@pytest.mark.parametrize("choice", ["k-means++", "leverage", "greedy"])
def test_any_choice_of_functions(choice):
    model = DecoupledGPRegressor(300, 60, basis_choice=choice, random_state=0).fit(X, Y)
    assert model.n_mean_basis_ <= 300
    assert model.n_cov_basis_ == 60
    assert nmse(model, NEW) < 0.02
    with pytest.raises(ValueError, match="basis_choice is for"):
        DecoupledGPRegressor(max_iter=3, basis_choice=choice).fit(X[:50], Y[:50])


def test_several_outputs_share_functions_and_have_noise_of_their_own():
    X, Y = rows(1500, outputs=3)
    Y[:, 1] = 100 * Y[:, 1] + 7
    Y[:, 2] = RNG.standard_normal(1500)
    model = DecoupledGPRegressor(random_state=0).fit(X, Y)
    mean, std = model.predict(NEW, return_std=True)
    assert mean.shape == std.shape == (2000, 3)
    assert np.mean((mean[:, 0] - truth(NEW)) ** 2) < 0.005
    assert 8 < np.median(std[:, 1]) < 14
    assert 0.9 < np.median(std[:, 2]) < 1.1
    assert np.mean(mean[:, 2] ** 2) < 0.1
    assert model.sample_y(NEW[:5], 4).shape == (5, 3, 4)
    low, high = model.predict_interval(NEW, conformal=True)
    assert low.shape == high.shape == (2000, 3)


def test_draws_and_covariance_are_calibrated_as_the_deviation_is():
    mean, std = fitted().predict(NEW[:50], return_std=True)
    again, covariance = fitted().predict(NEW[:50], return_cov=True)
    assert_allclose(again, mean)
    assert_allclose(np.sqrt(np.diag(covariance)), std, rtol=1e-6)
    draws = fitted().sample_y(NEW[:50], 4000)
    assert_allclose(draws.mean(1), mean, atol=0.02)
    assert_allclose(draws.std(1), std, rtol=0.1)


def test_pure_noise_is_not_learnt():
    X = RNG.uniform(-3, 3, (2000, 2))
    model = DecoupledGPRegressor(random_state=0).fit(X, RNG.standard_normal(2000))
    mean, std = model.predict(NEW, return_std=True)
    assert np.mean(mean**2) < 0.1
    assert np.all(np.abs(std - 1) < 0.15)


def test_a_noise_free_function_is_interpolated():
    X, _ = rows(3000)
    model = DecoupledGPRegressor(random_state=0).fit(X, truth(X))
    assert nmse(model, NEW) < 1e-4


def test_any_kernel():
    model = DecoupledGPRegressor(kernel=MaternKernel(nu=1.5), random_state=0).fit(
        X[:2500], Y[:2500]
    )
    assert nmse(model, NEW) < 0.02


def test_a_run_repeats_and_another_seed_differs():
    first, second, third = (
        DecoupledGPRegressor(random_state=seed).fit(X[:1500], Y[:1500]).predict(NEW)
        for seed in (0, 0, 1)
    )
    assert_array_equal(first, second)
    assert np.abs(first - third).max() > 1e-6


# ---- streams ----


def stream(model, X, y, size=100):
    for start in range(0, len(X), size):
        model.partial_fit(X[start : start + size], y[start : start + size])
    return model


def test_a_stream_ends_about_where_a_fit_does():
    streamed = stream(DecoupledGPRegressor(random_state=0), X, Y, 250)
    assert streamed.n_rows_ == streamed.n_mean_basis_ == 4000
    assert nmse(streamed, NEW) < 2 * nmse(fitted(), NEW)
    mean, std = streamed.predict(NEW, return_std=True)
    assert 0.91 < (np.abs(Y_NEW - mean) < 1.96 * std).mean() < 0.99


def test_a_full_basis_goes_on_learning():
    X, y = rows(6000, noise=1.0)
    model = DecoupledGPRegressor(400, random_state=0).fit(X[:1000], y[:1000])
    before = nmse(model, NEW)
    stream(model, X[1000:], y[1000:], 500)
    assert model.n_mean_basis_ <= 400
    assert model.n_rows_ == 6000
    assert nmse(model, NEW) < 0.6 * before
    assert model._run.cells.counts.sum() == 6000


def test_one_row_at_a_time_from_the_first():
    model = DecoupledGPRegressor(random_state=0)
    for row in range(60):
        model.partial_fit(X[row : row + 1], Y[row : row + 1])
        assert np.isfinite(model.predict(NEW[:5], return_std=True)).all()
    assert model.n_rows_ == 60


def test_a_half_life_follows_what_drifts():
    X, y = rows(3000)
    kept, faded = (
        DecoupledGPRegressor(500, half_life=half_life, random_state=0).fit(X[:1500], y[:1500])
        for half_life in (None, 150)
    )
    for model in (kept, faded):
        stream(model, X[1500:], 1 - y[1500:], 150)
    error = [np.mean((model.predict(NEW) - 1 + truth(NEW)) ** 2) for model in (kept, faded)]
    assert error[1] < 0.3 * error[0]


def test_a_fading_stream_learns_its_kernel_again_and_never_forgets_all():
    X, y = rows(1200)
    model = stream(DecoupledGPRegressor(half_life=600, random_state=0), X[:600], y[:600], 20)
    assert model._run.learnt_rows > 300
    model.partial_fit(X[600:], y[600:])
    assert nmse(model, NEW) < 0.1
    short = DecoupledGPRegressor(50, half_life=1, random_state=0).fit(X[:100], y[:100])
    short.partial_fit(X[100:400], y[100:400])
    assert np.isfinite(short.predict(NEW)).all()


def test_scales_that_change_take_the_calibration_with_them():
    X, y = rows(3000)
    model = DecoupledGPRegressor(random_state=0).partial_fit(X[:1300], 1e-3 * y[:1300])
    stream(model, X[1300:], y[1300:], 1700)
    _, std = model.predict(NEW, return_std=True)
    assert np.all(std > 0.01)


def test_an_error_in_a_stream_leaves_everything_as_it_was(monkeypatch):
    model = DecoupledGPRegressor(random_state=0).fit(X[:300], Y[:300])
    twin = DecoupledGPRegressor(random_state=0).fit(X[:300], Y[:300])

    def fail(*_, **__):
        raise MemoryError

    for name in ("solve_mean", "correct_block"):
        with monkeypatch.context() as patched:
            patched.setattr(stream_module, name, fail)
            size = 300 if name == "solve_mean" else 20
            with pytest.raises(MemoryError):
                model.partial_fit(X[300 : 300 + size], Y[300 : 300 + size])
    for one in (model, twin):
        one.partial_fit(X[300:700], Y[300:700])
    assert_array_equal(model.predict(NEW), twin.predict(NEW))
    assert len(model.history_) == len(twin.history_)


def test_no_covariance_functions():
    model = DecoupledGPRegressor(n_cov_basis=0, random_state=0).fit(X[:1500], Y[:1500])
    assert model.n_cov_basis_ == 0
    assert nmse(model, NEW) < 0.01


# ---- files, time, interruptions ----


def test_files(tmp_path):
    model = stream(
        DecoupledGPRegressor(2000, random_state=0).fit(X[:1800], Y[:1800]),
        X[1800:2300],
        Y[1800:2300],
    )
    model.save(tmp_path / "model.gp")
    loaded = DecoupledGPRegressor.load(tmp_path / "model.gp")
    for one, other in zip(
        loaded.predict(NEW, return_std=True), model.predict(NEW, return_std=True), strict=True
    ):
        assert_array_equal(one, other)
    for one in (model, loaded):
        stream(one, X[2300:3000], Y[2300:3000], 350)
    assert_array_equal(loaded.predict(NEW), model.predict(NEW))
    assert loaded.history_ == model.history_ or len(loaded.history_) == len(model.history_)


def test_history_callbacks_and_log(caplog):
    records = []

    def stop(model, record):
        records.append(record)
        assert np.isfinite(model.predict(NEW[:3])).all()
        return True

    model = DecoupledGPRegressor(random_state=0, callbacks=[stop]).fit(X, Y)
    assert records == model.history_
    assert {"iteration", "seconds", "rows", "elbo", "nmse"} <= set(records[0])
    elbos = [record["elbo"] for record in fitted().history_]
    assert elbos[-1] > elbos[0]
    with caplog.at_level(logging.INFO, "decoupledgp"):
        DecoupledGPRegressor(100, random_state=0).fit(X[:1500], Y[:1500])
    assert "rows in" in caplog.text


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


# ---- which solver ----


def test_arguments_of_gradients_choose_gradients():
    for options in (
        {"max_iter": 3},
        {"preset": "paper", "max_iter": 3},
        {"family": "hybrid", "max_iter": 3},
        {"basis": "multiscale", "max_iter": 3},
        {"likelihood": StudentTLikelihood(), "max_iter": 3},
    ):
        model = DecoupledGPRegressor(50, 10, **options).fit(X[:100], Y[:100])
        assert not isinstance(model._run, SolvedRun)
    model = DecoupledGPRegressor(likelihood=GaussianLikelihood()).fit(X[:100], Y[:100])
    assert isinstance(model._run, SolvedRun)


def test_contradictions_are_refused():
    def refused(message, **options):
        with pytest.raises(ValueError, match=message):
            DecoupledGPRegressor(**options).fit(X[:100], Y[:100])

    refused("not possible with max_iter", solver="sweeps", max_iter=3)
    refused("not possible with family", solver="sweeps", family="hybrid")
    refused("max_seconds is for", solver="gradient", max_seconds=3)
    refused("half_life is for", max_iter=3, half_life=100)
    model = DecoupledGPRegressor(max_iter=3).fit(X[:100], Y[:100])
    with pytest.raises(ValueError, match="cannot go on by sweeps"):
        model.set_params(max_iter=None).partial_fit(X[:10], Y[:10])
    with pytest.raises(ValueError, match="no gradients go on"):
        DecoupledGPRegressor().fit(X[:50], Y[:50]).set_params(max_iter=3).partial_fit(X[:9], Y[:9])
    with pytest.raises(ValueError, match="coverage must be"):
        fitted().predict_interval(NEW, 1.5)
    with pytest.raises(ValueError, match="held out"):
        DecoupledGPRegressor().fit(X[:100], Y[:100]).predict_interval(NEW, conformal=True)


# ---- whatever comes in ----


@pytest.mark.parametrize("n", [1, 2, 3, 40, 1200])
@pytest.mark.parametrize(
    "change",
    [
        lambda X, y: (X, y),
        lambda X, y: (X * [1e9, 1e-9], 1e9 * y),
        lambda X, y: (np.column_stack([X, np.ones(len(X))]), y),
        lambda X, y: (X, np.full(len(y), 3.0)),
        lambda X, y: (np.zeros_like(X), y),
        lambda X, y: (X[np.arange(len(X)) // 7 * 7 % len(X)], y),
        lambda X, y: (X, np.where(np.arange(len(y)) == 0, 1e6, y)),
        lambda X, y: (np.round(X), np.round(y)),
    ],
    ids=[
        "plain",
        "scales",
        "constant input",
        "constant target",
        "one place",
        "repeats",
        "outlier",
        "rounded",
    ],
)
def test_odd_tables(n, change):
    x, y = change(*rows(n))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DeprecationWarning)
        model = DecoupledGPRegressor(random_state=0).fit(x, y)
    mean, std = model.predict(x, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    assert np.isfinite(std).all()
    assert np.isfinite(model.elbo(x, y))


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_refused_and_nothing_lost(method, bad):
    model = DecoupledGPRegressor(random_state=0).fit(X[:100], Y[:100])
    before = model.predict(NEW)
    wrong = X[:50].copy()
    wrong[3, 1] = bad
    with pytest.raises(ValueError, match="X"):
        getattr(model, method)(wrong, Y[:50])
    assert_array_equal(model.predict(NEW), before)
