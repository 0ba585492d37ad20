"""Weights and known noise of single rows, and warped inputs, as a user meets them."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from decoupledgp import DecoupledGPRegressor

pytestmark = pytest.mark.usefixtures("few_groups")

NEW = np.random.default_rng(9).uniform(-3, 3, (1000, 1))


def truth(X):
    return np.sin(2 * X[:, 0])


def rows(n, seed=0, outputs=1):
    """Half of the rows have a noise variance of 0.01, half of 1.01."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, 1))
    known = np.where(rng.random(n) < 0.5, 1.0, 0.0)
    y = truth(X)[:, None] + np.sqrt(0.01 + known)[:, None] * rng.standard_normal((n, outputs))
    return X, y[:, 0] if outputs == 1 else y, known


def error(model):
    return np.mean((np.reshape(model.predict(NEW), (len(NEW), -1))[:, 0] - truth(NEW)) ** 2)


@pytest.mark.parametrize("n", [200, 1500])
def test_known_noise_makes_the_mean_better_and_is_not_in_predictions(n):
    X, y, known = rows(n)
    informed = DecoupledGPRegressor(random_state=0).fit(X, y, noise_variance=known)
    plain = DecoupledGPRegressor(random_state=0).fit(X, y)
    assert error(informed) < 0.6 * error(plain)
    assert np.median(informed.predict(NEW, return_std=True)[1]) < 0.25
    assert np.median(plain.predict(NEW, return_std=True)[1]) > 0.5


def test_weights_are_noise_over_a_common_factor():
    X, y, known = rows(200)
    by_weight = DecoupledGPRegressor(random_state=0).fit(X, y, weights=1 / (0.01 + known))
    by_noise = DecoupledGPRegressor(random_state=0).fit(X, y, noise_variance=known)
    assert_allclose(by_weight.predict(NEW), by_noise.predict(NEW), atol=0.1)
    assert error(by_weight) < 0.02


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_only_ratios_of_weights_matter(unit):
    X, y, known = rows(1200)
    model = DecoupledGPRegressor(random_state=0).fit(X, y, weights=unit / (0.01 + known))
    assert error(model) < 0.01
    model.partial_fit(X[:400], y[:400], weights=unit / (0.01 + known[:400]))
    assert error(model) < 0.01
    assert model.n_mean_basis_ == 1600


def test_rows_of_weight_one_and_no_noise_are_rows():
    X, y, _ = rows(100)
    plain = DecoupledGPRegressor(random_state=0).fit(X, y).predict(NEW)
    dressed = DecoupledGPRegressor(random_state=0).fit(
        X, y, weights=np.ones(100), noise_variance=np.zeros(100)
    )
    assert_array_equal(dressed.predict(NEW), plain)


def test_outputs_may_have_noise_of_their_own():
    X, Y, known = rows(1200, outputs=2)
    known = np.column_stack([known, np.zeros(1200)])
    Y[:, 1] = truth(X) + 0.1 * np.random.default_rng(1).standard_normal(1200)
    model = DecoupledGPRegressor(random_state=0).fit(X, 10 * Y, noise_variance=100 * known)
    mean, std = model.predict(NEW, return_std=True)
    assert np.mean((mean - 10 * truth(NEW)[:, None]) ** 2, 0).max() < 1
    assert_allclose(np.median(std, 0), 1, rtol=0.5)


def test_in_a_stream_and_in_cells_that_rows_share():
    X, y, known = rows(3000)
    models = [DecoupledGPRegressor(300, random_state=0) for _ in range(2)]
    for start in range(0, 3000, 500):
        part = slice(start, start + 500)
        models[0].partial_fit(X[part], y[part], noise_variance=known[part])
        models[1].partial_fit(X[part], y[part])
    assert error(models[0]) < error(models[1])
    assert np.median(models[0].predict(NEW, return_std=True)[1]) < 0.25
    table = DecoupledGPRegressor(300, random_state=0).fit(X, y, noise_variance=known)
    assert error(table) < 0.01


def test_files_keep_it(tmp_path):
    X, y, known = rows(1500)
    model = DecoupledGPRegressor(random_state=0, warp_inputs=True).fit(
        np.exp(X), y, noise_variance=known, weights=1 + known
    )
    assert model._run.x_scaler.warp is not None
    model.save(tmp_path / "m.gp")
    loaded = DecoupledGPRegressor.load(tmp_path / "m.gp")
    assert_array_equal(loaded.predict(NEW, return_std=True), model.predict(NEW, return_std=True))
    for one in (model, loaded):
        one.partial_fit(np.exp(X[:50]), y[:50], noise_variance=known[:50])
    assert_array_equal(loaded.predict(NEW), model.predict(NEW))


@pytest.mark.parametrize("name", ["weights", "noise_variance"])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.ones(9), "of shape"),
        (np.ones((10, 2)), "of shape"),
        (["a"] * 10, "must be numbers"),
        ([1.0] * 9 + [np.nan], "NaN"),
        ([1.0] * 9 + [np.inf], "inf"),
        ([1.0] * 9 + [-1.0], "row 9"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_lost(name, values, message):
    X, y, _ = rows(10)
    model = DecoupledGPRegressor(random_state=0).fit(X, y)
    before = model.predict(NEW)
    for method in (model.fit, model.partial_fit):
        with pytest.raises(ValueError, match=message):
            method(X, y, **{name: values})
    assert_array_equal(model.predict(NEW), before)
    with pytest.raises(ValueError, match="learnt by gradients"):
        DecoupledGPRegressor(max_iter=2).fit(X, y, **{name: np.ones(10)})
    with pytest.raises(ValueError, match="must be positive"):
        DecoupledGPRegressor().fit(X, y, weights=np.zeros(10))


# ---- skewed inputs ----


def test_skewed_inputs_are_warped_where_it_helps():
    X, _, _ = rows(1500)
    y = truth(X) + 0.1 * np.random.default_rng(1).standard_normal(1500)
    skewed, new = np.exp(1.5 * X), np.exp(1.5 * NEW)
    chosen, plain, told = (
        DecoupledGPRegressor(random_state=0, warp_inputs=warp, kernel=None).fit(skewed, y)
        for warp in (None, False, True)
    )
    assert chosen._run.x_scaler.warp is not None
    assert plain._run.x_scaler.warp is None
    assert told._run.x_scaler.warp is not None
    errors = [np.mean((m.predict(new) - truth(NEW)) ** 2) for m in (chosen, plain, told)]
    assert errors[0] < 0.7 * errors[1]
    assert errors[2] < 0.7 * errors[1]
    even = DecoupledGPRegressor(random_state=0).fit(X, y)
    assert even._run.x_scaler.warp is None


def test_a_function_of_a_skewed_input_itself_is_left_alone():
    rng = np.random.default_rng(0)
    X = rng.lognormal(size=(1200, 1))
    y = 0.3 * X[:, 0] + 0.05 * rng.standard_normal(1200)
    assert DecoupledGPRegressor(random_state=0).fit(X, np.sin(y))._run.x_scaler.warp is None


def test_a_given_kernel_gets_inputs_as_they_are():
    from gpytorch.kernels import MaternKernel

    X, y, _ = rows(300)
    model = DecoupledGPRegressor(kernel=MaternKernel(nu=1.5), random_state=0).fit(np.exp(X), y)
    assert model._run.x_scaler.warp is None
    model.set_params(warp_inputs=True).fit(np.exp(X), y)
    assert model._run.x_scaler.warp is not None
    with pytest.raises(ValueError, match="warp_inputs is for"):
        DecoupledGPRegressor(max_iter=2, warp_inputs=True).fit(X, y)
