"""Forty rows, a model that learns little of them, and what every model must do."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from decoupledgp import DecoupledGPRegressor

X = np.random.default_rng(0).standard_normal((40, 2))
Y = np.column_stack([np.sin(2 * X[:, 0]) + X[:, 1], X[:, 0] * X[:, 1]])
y = Y[:, 0]
DTYPES = ("float32", "float64")


def small(**options):
    """Return a model that learns little, but grows its bases and samples its KL as ever."""
    sizes = {"n_mean_basis": 20, "n_cov_basis": 8, "batch_size": 16, "max_iter": 8}
    steps = {"basis_increment": 6, "kl_batch_size": 12, "random_state": 0}
    return DecoupledGPRegressor(**{**sizes, **steps, **options})


def check_predictions(model, rows, y):
    """Every way to predict is finite, has y's shape, and agrees with the others."""
    n, outputs = len(rows), y.shape[1:]
    mean, std = model.predict(rows, return_std=True)
    joint_mean, cov = model.predict(rows, return_cov=True)
    draws = model.sample_y(rows, 2)
    assert mean.shape == std.shape == (n, *outputs)
    assert cov.shape == (n, n, *outputs)
    assert draws.shape == (n, *outputs, 2)
    for result in (mean, std, cov, draws):
        assert np.isfinite(result).all()
    assert (std > 0).all()
    assert_allclose(joint_mean, mean, rtol=1e-9)
    assert_allclose(np.moveaxis(cov.diagonal(), -1, 0), std**2, rtol=1e-6)
    # A model after a few steps can be poor, but not off by orders of magnitude.
    size = np.abs(y).max(0)
    spread = np.abs(y - y.mean(0)).max(0)
    spread = np.where(spread > 1e-12 * size, spread, 1)
    assert (np.abs(mean - y.mean(0)) <= 100 * spread + 1e-9 * size).all()
    assert (std <= 100 * spread).all()


def raised(call, kind, match):
    """Run, and return the message of the one exception of this very kind."""
    with pytest.raises(kind, match=match) as info:
        call()
    error = info.value
    other = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    assert other is None or isinstance(other, Warning)
    return str(error)
