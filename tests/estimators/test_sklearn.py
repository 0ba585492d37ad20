"""scikit-learn's own checks, unpatched, with no expected failure."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import check_estimator

from decoupledgp import DecoupledGPRegressor

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (120, 2))
Y = np.sin(2 * X[:, 0]) + 0.1 * RNG.standard_normal(120)


def test_check_estimator():
    results = check_estimator(DecoupledGPRegressor(), on_skip=None)
    assert {r["status"] for r in results} <= {"passed", "skipped"}
    skipped = [r["check_name"] for r in results if r["status"] == "skipped"]
    assert skipped in ([], ["check_array_api_input"])  # needs an environment variable before import
    assert not any(r["expected_to_fail"] for r in results)


def test_clone_and_pickle():
    model = DecoupledGPRegressor(50, 10, max_iter=30, random_state=0).fit(X, Y)
    copy = pickle.loads(pickle.dumps(model))
    for got, expected in zip(
        copy.predict(X, return_std=True), model.predict(X, return_std=True), strict=True
    ):
        np.testing.assert_array_equal(got, expected)
    copy.partial_fit(X, Y)
    model.partial_fit(X, Y)
    np.testing.assert_array_equal(copy.predict(X), model.predict(X))
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(AttributeError):
        clone(model).posterior_  # noqa: B018


def test_in_searches_and_pipelines():
    search = GridSearchCV(
        DecoupledGPRegressor(max_iter=100, random_state=0), {"n_mean_basis": [1, 60]}, cv=2
    ).fit(X, Y)
    assert search.best_params_ == {"n_mean_basis": 60}
    model = make_pipeline(PolynomialFeatures(2), DecoupledGPRegressor(max_iter=30, random_state=0))
    assert cross_val_score(model, X, Y, cv=2).shape == (2,)
