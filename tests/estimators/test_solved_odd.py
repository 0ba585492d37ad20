"""`DecoupledGPRegressor()` on odd tables, bad rows and contradictory arguments."""

import warnings

import numpy as np
import pytest
from gpytorch.kernels import RBFKernel
from gpytorch.likelihoods import GaussianLikelihood
from numpy.testing import assert_allclose, assert_array_equal

from decoupledgp import DecoupledGPRegressor
from largest import LargestTensor
from waves import NEW, X, Y, fitted, rows

pytestmark = pytest.mark.usefixtures("few_groups")


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


@pytest.mark.parametrize(("scale", "functions"), [(1e-100, 60), (1e100, None)])
def test_targets_of_any_size(scale, functions):
    X, y = rows(300)
    model = DecoupledGPRegressor(functions, random_state=0).fit(X, scale * y)
    plain = DecoupledGPRegressor(functions, random_state=0).fit(X, y)
    assert_allclose(model.predict(NEW) / scale, plain.predict(NEW), atol=1e-6)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_targets_whose_squares_are_no_numbers_are_refused(scale):
    with pytest.raises(ValueError, match="use other units"):
        DecoupledGPRegressor().fit(X[:100], scale * Y[:100])


def test_what_is_frozen_stays_as_it_is():
    likelihood = GaussianLikelihood().requires_grad_(False)
    kernel = RBFKernel().requires_grad_(False)
    model = DecoupledGPRegressor(kernel=kernel, likelihood=likelihood, random_state=0)
    model.fit(X[:200], Y[:200])
    assert model.likelihood_.noise.item() == pytest.approx(likelihood.noise.item())
    assert model.kernel_.base_kernel.lengthscale.item() == pytest.approx(kernel.lengthscale.item())


def test_a_bound_of_many_rows_takes_them_in_parts():
    model = DecoupledGPRegressor(100, 64, random_state=0).fit(X[:200], Y[:200])
    many = np.tile(X, (5, 1)), np.tile(Y, 5)
    with LargestTensor() as seen:
        whole = model.elbo(*many)
    assert seen.largest < len(many[0]) * 64 * 8 / 2
    assert_allclose(whole, model.elbo(X, Y), rtol=1e-9)
