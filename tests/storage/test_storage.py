"""A model file gives the model back to the last bit."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch import kernels as gk
from gpytorch import likelihoods as gl
from sklearn.base import clone

from decoupledgp import DecoupledGPRegressor
from saved_models import (
    SMALL,
    D,
    assert_same_learner,
    assert_same_predictions,
    fitted,
    rows,
    saved_and_loaded,
)


def matern():
    kernel = gk.ScaleKernel(gk.MaternKernel(nu=1.5, ard_num_dims=D))
    kernel.base_kernel.lengthscale = 1.7
    kernel.base_kernel.raw_lengthscale.requires_grad_(False)
    return kernel


def composite():
    return gk.RBFKernel(ard_num_dims=2, active_dims=(0, 2)) + gk.ScaleKernel(gk.LinearKernel())


CASES = {
    "float32": {},
    "float64": {"dtype": "float64"},
    "outputs": {"outputs": 3},
    "points": {"basis": "points"},
    "partially shared": {"partially_shared": True, "mean_preconditioner": "none"},
    "preconditioned": {"mean_preconditioner": "nystrom", "cov_preconditioner": "full"},
    "partially shared, points": {"partially_shared": True, "basis": "points", "outputs": 2,
                                 "dtype": "float64"},
    "Matern, frozen": {"kernel": matern()},
    "Matern, float64": {"kernel": matern().double(), "dtype": "float64", "outputs": 2},
    "composite": {"kernel": composite()},
    "Student-t": {"likelihood": gl.StudentTLikelihood()},
    "Student-t, float64": {"likelihood": gl.StudentTLikelihood(), "dtype": "float64"},
    "Laplace": {"likelihood": gl.LaplaceLikelihood(batch_shape=torch.Size([2])), "outputs": 2},
    "no covariance": {"n_cov_basis": 0},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_loaded_model_predicts_and_goes_on_learning_exactly(case, tmp_path):
    model = fitted(**CASES[case])
    outputs = CASES[case].get("outputs", 0)
    model, loaded = saved_and_loaded(model, tmp_path / "model")
    assert loaded.history_ == model.history_
    assert_same_predictions(model, loaded, rows(9, seed=1)[0])
    more = rows(40, outputs, seed=2)
    model.partial_fit(*more)
    loaded.partial_fit(*more)
    assert_same_learner(model, loaded)
    np.testing.assert_array_equal(model.sample_y(more[0][:3]), loaded.sample_y(more[0][:3]))


def test_likelihood_of_labels(tmp_path):
    X, y = rows()
    model = DecoupledGPRegressor(**SMALL, likelihood=gl.BernoulliLikelihood()).fit(X, y > 0)
    model, loaded = saved_and_loaded(model, tmp_path / "model")
    for a, b in zip(*(m.predict(X, return_std=True) for m in (model, loaded)), strict=True):
        np.testing.assert_array_equal(a, b)
    model.partial_fit(X, y > 0)
    loaded.partial_fit(X, y > 0)
    assert_same_learner(model, loaded)


@pytest.mark.parametrize(
    ("start", "order", "options"),
    [
        ("fit", "C", {}),
        ("partial_fit", "F", {"dtype": "float64"}),
        ("partial_fit", "reversed", {"kernel": matern(), "dtype": "float64"}),
    ],
)
def test_stream_in_its_first_rows(start, order, options, tmp_path):
    X, Y = rows(40, outputs=2)
    X = {"C": X, "F": np.asfortranarray(X), "reversed": X[::-1]}[order]
    Y = np.asfortranarray(Y) if order == "F" else Y
    model = DecoupledGPRegressor(**{**SMALL, **options})
    getattr(model, start)(X[:5], Y[:5])
    model.partial_fit(X[5:6], Y[5:6])
    model, loaded = saved_and_loaded(model, tmp_path / "model")
    assert len(loaded._run._first_rows) == 2
    for part in (slice(6, 20), slice(20, 40)):
        for each in (model, loaded):
            each.partial_fit(X[part], Y[part])
        assert_same_learner(model, loaded)
    assert_same_predictions(model, loaded, X)


def test_single_precision_rows_and_a_column_still_constant(tmp_path):
    X, y = rows(dtype=np.float32)
    X[:, 1] = 4
    model = DecoupledGPRegressor(**SMALL).partial_fit(X, y)
    model, loaded = saved_and_loaded(model, tmp_path / "model")
    assert loaded._run.x_scaler.centre.dtype == model._run.x_scaler.centre.dtype
    more = rows(dtype=np.float32, seed=1)
    for each in (model, loaded):
        each.partial_fit(*more)
    assert_same_learner(model, loaded)


def test_feature_names(tmp_path):
    X, y = rows()
    names = ["angle", "torque_3", 'größe "sha256":"0"']
    model = DecoupledGPRegressor(**SMALL).fit(pd.DataFrame(X, columns=names), y)
    model, loaded = saved_and_loaded(model, tmp_path / "model")
    assert list(loaded.feature_names_in_) == names
    frame = pd.DataFrame(X[:5], columns=names)
    assert_same_predictions(model, loaded, frame)
    with pytest.raises(ValueError, match="feature names"):
        loaded.predict(frame[names[::-1]])


def test_constructor_arguments(tmp_path):
    model = fitted(
        learning_rate=0.05,
        kernel=matern(),
        callbacks=[lambda model, record: None],
        preset="paper",
    ).set_params(n_mean_basis=np.int64(12))
    model, loaded = saved_and_loaded(model, tmp_path / "model")
    params, expected = loaded.get_params(), model.get_params()
    for name in ("kernel", "callbacks"):
        params.pop(name), expected.pop(name)
    assert params == expected
    assert type(loaded.n_mean_basis) is int
    assert loaded.callbacks is None
    assert torch.equal(loaded.kernel.base_kernel.lengthscale, matern().base_kernel.lengthscale)
    again = [
        clone(each).set_params(callbacks=None, n_mean_basis=12).fit(*rows())
        for each in (model, loaded)
    ]
    assert_same_learner(*again)


def test_settings_of_the_run_outlive_set_params(tmp_path):
    model = fitted().set_params(batch_size=5, mean_preconditioner="none")
    model, loaded = saved_and_loaded(model, tmp_path / "model")
    assert loaded.batch_size == 5
    for each in (model, loaded):
        each.partial_fit(*rows(seed=1))
    assert_same_learner(model, loaded)


def test_random_state_object_is_dropped(tmp_path):
    _, loaded = saved_and_loaded(fitted(random_state=np.random.RandomState(0)), tmp_path / "model")
    assert loaded.random_state is None


def test_frozen_after_fitting(tmp_path):
    model = fitted()
    model.posterior_.mean_basis.locations.requires_grad_(False)
    model, loaded = saved_and_loaded(model, tmp_path / "model")
    for each in (model, loaded):
        each.partial_fit(*rows(seed=1))
    assert_same_learner(model, loaded)


def test_saved_while_fitting(tmp_path):
    X, _ = rows()
    seen = []

    def keep(model, record):
        model.save(tmp_path / "model")
        seen.append(model.predict(X))

    fitted(callbacks=[keep])
    np.testing.assert_array_equal(
        DecoupledGPRegressor.load(tmp_path / "model").predict(X), seen[-1]
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device is there")
def test_device_that_is_not_here(tmp_path):
    model = fitted(device="cpu")
    model.device, model._run.device = "cuda", torch.device("cuda")
    model.save(tmp_path / "model")
    with pytest.warns(UserWarning, match="no device 'cuda' here"):
        loaded = DecoupledGPRegressor.load(tmp_path / "model")
    assert loaded.device is None
    np.testing.assert_array_equal(loaded.predict(rows()[0]), model.predict(rows()[0]))
