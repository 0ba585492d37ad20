"""`DecoupledGPRegressor()` with nothing else, as a user meets it: solved for and calibrated."""

import logging

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel
from gpytorch.likelihoods import GaussianLikelihood, StudentTLikelihood
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from decoupledgp import DecoupledGPRegressor
from decoupledgp.estimators.solved import SolvedRun
from waves import NEW, Y_NEW, X, Y, fitted, nmse, rows, truth

RNG = np.random.default_rng(0)

pytestmark = pytest.mark.usefixtures("few_groups")


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


def test_an_automatic_kernel_is_chosen_kept_and_goes_on(tmp_path):
    """Steps are rough: no smooth kernel; the file knows which it is, and a stream keeps it."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (1500, 2))
    y = np.sign(np.sin(5 * X[:, 0])) + 0.1 * rng.standard_normal(1500)
    model = DecoupledGPRegressor(random_state=0).fit(X[:1200], y[:1200])
    plain = DecoupledGPRegressor(kernel=None, random_state=0).fit(X[:1200], y[:1200])
    assert isinstance(model.kernel_.base_kernel, MaternKernel)
    assert isinstance(plain.kernel_.base_kernel, RBFKernel)
    assert model.score(X[1200:], y[1200:]) > plain.score(X[1200:], y[1200:])
    model.set_params(kernel=None).save(tmp_path / "a.gp")  # the file is of what was fitted
    model.set_params(kernel="auto")
    loaded = DecoupledGPRegressor.load(tmp_path / "a.gp")
    assert loaded.kernel == "auto"
    assert loaded.kernel_.base_kernel.nu == model.kernel_.base_kernel.nu
    for one in (model, loaded):
        one.partial_fit(X[1200:], y[1200:])
    assert_array_equal(model.predict(X), loaded.predict(X))
    assert isinstance(model.kernel_.base_kernel, MaternKernel)
    assert clone(model).kernel == "auto"
    with pytest.raises(ValueError, match="leave kernel= out"):
        DecoupledGPRegressor.load(tmp_path / "a.gp", kernel=MaternKernel())


def test_by_gradients_an_automatic_kernel_is_se_ard(tmp_path):
    for options in ({"max_iter": 3}, {"solver": "gradient"}):
        model = DecoupledGPRegressor(50, 10, random_state=0, **options).fit(X, Y)
        assert isinstance(model.kernel_.base_kernel, RBFKernel)
        for kernel in ("auto", None):
            model.set_params(kernel=kernel).save(tmp_path / "a.gp")
            assert DecoupledGPRegressor.load(tmp_path / "a.gp").kernel == kernel


def test_an_automatic_kernel_with_weights_groups_and_other_likelihoods():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (1500, 1))
    f = np.sign(np.sin(5 * X[:, 0]))
    y = f + 0.1 * rng.standard_normal(1500)
    extras = {"weights": rng.uniform(0.5, 2, 1500), "groups": rng.integers(20, size=1500)}
    for name, values in extras.items():
        model = DecoupledGPRegressor(kernel="auto", random_state=0).fit(X, y, **{name: values})
        assert isinstance(model.kernel_.base_kernel, MaternKernel)
    model = DecoupledGPRegressor(kernel="auto", likelihood=StudentTLikelihood(), random_state=0)
    assert isinstance(model.fit(X, y).kernel_.base_kernel, MaternKernel)


def test_an_automatic_kernel_is_chosen_later_if_the_first_rows_were_few():
    """Fifty rows say nothing of the smoothness; the stream decides when there are more."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (1500, 1))
    y = np.sign(np.sin(5 * X[:, 0])) + 0.1 * rng.standard_normal(1500)
    for likelihood in (None, StudentTLikelihood()):
        model = DecoupledGPRegressor(kernel="auto", likelihood=likelihood, random_state=0)
        model.partial_fit(X[:50], y[:50])
        assert isinstance(model.kernel_.base_kernel, RBFKernel)
        model.partial_fit(X[50:], y[50:])
        assert isinstance(model.kernel_.base_kernel, MaternKernel)


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_matern_kernels_are_solved_for_exactly(nu):
    """With a function per row: GPyTorch's own kernel and a dense solution."""
    kernel = MaternKernel(nu=nu, ard_num_dims=X.shape[1])
    model = DecoupledGPRegressor(kernel=kernel, random_state=0).fit(X[:600], Y[:600])
    x, new = (torch.from_numpy(model._run.x_scaler.transform(part)) for part in (X[:600], NEW))
    prior, noise = model.kernel_, model.likelihood_.noise.item()
    with torch.no_grad():
        K = prior(x).to_dense()[0] + noise * torch.eye(600)
        y = torch.from_numpy(model._run.y_scaler.transform(Y[:600].reshape(600, -1), np.inf))
        mean = prior(new, x).to_dense()[0] @ torch.linalg.solve(K, y)
    expected = model._run.y_scaler.inverse(mean.numpy())
    assert_allclose(model.predict(NEW), expected.reshape(-1), atol=1e-4 * np.abs(expected).max())


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


def test_no_covariance_functions():
    model = DecoupledGPRegressor(n_cov_basis=0, random_state=0).fit(X[:1500], Y[:1500])
    assert model.n_cov_basis_ == 0
    assert nmse(model, NEW) < 0.01


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
    assert "1,500 rows, 100 functions for the mean, 100 for the covariance" in caplog.text


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
