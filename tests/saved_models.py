"""Small models to save, and how they come back."""

from __future__ import annotations

import copy
import functools

import numpy as np
import torch

from decoupledgp import DecoupledGPRegressor
from decoupledgp.storage import model as contents

D = 3
SMALL = {
    "n_mean_basis": 12,
    "n_cov_basis": 5,
    "max_iter": 2,
    "batch_size": 16,
    "basis_increment": 4,
    "kl_batch_size": 6,
    "random_state": 0,
}


def rows(n=48, outputs=0, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D)).astype(dtype)
    Y = np.sin(X[:, :1] * np.arange(1, max(outputs, 1) + 1)) + 0.1 * rng.normal(size=(n, 1))
    return X, Y if outputs else Y[:, 0]


@functools.cache
def default_model():
    return DecoupledGPRegressor(**SMALL).fit(*rows())


def fitted(outputs=0, **params):
    if not outputs and not params:
        return copy.deepcopy(default_model())
    return DecoupledGPRegressor(**{**SMALL, **params}).fit(*rows(outputs=outputs))


def saved_and_loaded(model, path, **given):
    """The model as it was before saving, and as it comes back."""
    before = copy.deepcopy(model)
    model.save(path)
    return before, type(model).load(path, **given)


def assert_same_predictions(one, other, X):
    np.testing.assert_array_equal(one.predict(X), other.predict(X))
    for option in ("return_std", "return_cov"):
        for a, b in zip(
            one.predict(X, **{option: True}), other.predict(X, **{option: True}), strict=True
        ):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


def timeless(history):
    return [{key: value for key, value in record.items() if key != "seconds"} for record in history]


def assert_same_learner(one, other):
    """Everything that further learning depends on."""
    a, b = contents._tensors(one), contents._tensors(other)
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype
        assert torch.equal(a[name], b[name]), name
    assert other._run.rng is other._run.online.rng
    assert one._run.rng.bit_generator.state == other._run.rng.bit_generator.state
    assert timeless(one.history_) == timeless(other.history_)
    for name in ("n_rows_", "n_iter_", "n_mean_basis_", "n_cov_basis_", "n_features_in_"):
        assert getattr(one, name) == getattr(other, name)
