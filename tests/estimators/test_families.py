"""The posterior families of `DecoupledGPRegressor`, as a user meets them."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.utils.estimator_checks import check_estimator

from decoupledgp import DecoupledGPRegressor

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (300, 2))
NEW = RNG.uniform(-2, 2, (50, 2))
Y = np.sin(3 * X[:, 0]) + 0.1 * RNG.standard_normal(300)
BOTH = np.column_stack([Y, 100 * np.cos(X[:, 1])])

each = pytest.mark.parametrize("family", ["hybrid", "orthogonal"])


def small(family, **settings):
    defaults = {"max_iter": 60, "batch_size": 100, "random_state": 0}
    return DecoupledGPRegressor(150, 20, family=family, **{**defaults, **settings})


@each
def test_check_estimator(family):
    results = check_estimator(DecoupledGPRegressor(family=family, max_iter=10), on_skip=None)
    assert {r["status"] for r in results} <= {"passed", "skipped"}
    assert not any(r["expected_to_fail"] for r in results)


@each
@pytest.mark.parametrize("basis", ["multiscale", "points"])
def test_they_learn(family, basis):
    model = small(family, basis=basis, max_iter=300).fit(X, Y)
    assert (model.n_mean_basis_, model.n_cov_basis_) == (150, 20)
    truth = np.sin(3 * NEW[:, 0])
    mean, std = model.predict(NEW, return_std=True)
    assert np.mean((mean - truth) ** 2) < 0.05 * np.var(truth)
    assert (std > 0).all()
    assert model.elbo(X, Y) > small(family, max_iter=1).fit(X, Y).elbo(X, Y)


@each
def test_several_outputs_files_and_streams(family, tmp_path):
    model = small(family).fit(X, BOTH)
    assert model.predict(NEW).shape == (50, 2)
    assert model.sample_y(NEW, 2).shape == (50, 2, 2)
    model.save(tmp_path / "model.gp")
    loaded = DecoupledGPRegressor.load(tmp_path / "model.gp")
    assert loaded.family == family
    for got, expected in zip(
        loaded.predict(NEW, return_std=True), model.predict(NEW, return_std=True), strict=True
    ):
        assert_array_equal(got, expected)
    for one in (model, loaded):
        one.partial_fit(X[:100], BOTH[:100])
    assert_array_equal(loaded.predict(NEW), model.predict(NEW))


@each
def test_the_covariance_agrees_with_the_standard_deviation(family):
    model = small(family).fit(X, Y)
    mean, cov = model.predict(NEW, return_cov=True)
    again, std = model.predict(NEW, return_std=True)
    assert_allclose(mean, again, rtol=1e-6, atol=1e-8)
    assert_allclose(np.sqrt(np.diag(cov)), std, rtol=1e-6)


@each
def test_a_run_repeats(family):
    first, second = (small(family).fit(X, Y).predict(NEW) for _ in range(2))
    assert_array_equal(first, second)


@each
def test_partially_shared_is_refused(family):
    with pytest.raises(ValueError, match="partially_shared is for"):
        small(family, partially_shared=True).fit(X, Y)


def test_the_hybrid_takes_nystrom_and_the_orthogonal_says_why_not():
    model = small("hybrid", mean_preconditioner="nystrom").fit(X, Y)
    assert np.mean((model.predict(NEW) - np.sin(3 * NEW[:, 0])) ** 2) < 0.5
    with pytest.raises(ValueError, match='nothing for "nystrom" to precondition'):
        small("orthogonal", mean_preconditioner="nystrom").fit(X, Y)


@each
def test_the_natural_rate_is_used(family):
    slow, fast = (small(family, natural_rate=rate, max_iter=3).fit(X, Y) for rate in (0.01, 1.0))
    assert np.abs(slow.predict(NEW) - fast.predict(NEW)).max() > 1e-3
