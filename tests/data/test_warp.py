"""The power transform of skewed columns."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import yeojohnson, yeojohnson_llf
from sklearn.preprocessing import PowerTransformer

from decoupledgp.data import Standardizer, Warp

RNG = np.random.default_rng(0)


def standard(X):
    return (X - X.mean(0)) / X.std(0)


def test_the_transform_is_scipys():
    z = standard(RNG.gamma(0.5, size=(500, 1)) - 0.1 * RNG.random((500, 1)))
    for power in (-2.0, 0.0, 0.5, 2.0, 3.0):
        warp = Warp(np.array([power]), np.zeros(1), np.ones(1))
        assert_allclose(warp(z)[:, 0], yeojohnson(z[:, 0], power), rtol=1e-10, atol=1e-12)


def test_the_power_is_the_most_likely_one_and_near_scikit_learns():
    z = standard(np.exp(RNG.standard_normal((3000, 1))))
    found = Warp.fit(z, RNG)
    best = yeojohnson_llf(found.powers[0], z[:, 0])
    for power in np.linspace(-3.9, 3.9, 40):
        assert best >= yeojohnson_llf(power, z[:, 0]) - 1
    assert abs(found.powers[0] - PowerTransformer().fit(z).lambdas_[0]) < 0.1
    warped = found(z)
    assert_allclose([warped.mean(), warped.std()], [0, 1], atol=1e-9)


def test_even_columns_and_labels_stay_and_skewed_ones_beside_them_do_not():
    labels = (RNG.random(2000) < 0.05).astype(float)
    X = standard(np.column_stack([RNG.standard_normal(2000), labels, RNG.lognormal(size=2000)]))
    warp = Warp.fit(X, RNG)
    assert list(warp.powers[:2]) == [1, 1]
    assert warp.powers[2] < 0
    assert_allclose(warp(X)[:, :2], X[:, :2])
    assert Warp.fit(X[:, :2], RNG) is None
    assert Warp.fit(np.zeros((20, 2)), RNG) is None


@pytest.mark.parametrize("far", [1e300, -1e300, 0.0])
def test_whatever_comes_later_stays_finite(far):
    X = RNG.lognormal(sigma=2, size=(500, 1))
    scaler = Standardizer(X)
    scaler.warp = Warp.fit(scaler.transform(X), RNG)
    out = scaler.transform(np.array([[far]]))
    assert np.isfinite(out).all()
    assert np.abs(out).max() <= 1e5


def test_order_is_kept():
    X = np.sort(RNG.lognormal(sigma=2, size=(500, 1)), axis=0)
    scaler = Standardizer(X)
    scaler.warp = Warp.fit(scaler.transform(X), RNG)
    assert np.all(np.diff(scaler.transform(X)[:, 0]) >= 0)
