"""A model file gives the model back to the last bit, or is refused; saving harms no old one."""

from __future__ import annotations

import copy
import errno
import functools
import json
import os
import signal
import stat
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch import kernels as gk
from gpytorch import likelihoods as gl
from gpytorch.constraints import GreaterThan, Interval, LessThan, Positive
from gpytorch.priors import GammaPrior
from safetensors import safe_open
from safetensors.torch import save_file
from sklearn.base import clone
from torch.nn.functional import softplus

from decoupledgp import DecoupledGPRegressor
from decoupledgp.kernels import log_positive
from decoupledgp.storage import ModelFileError, file, specs
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


# ---- kernels and likelihoods ----

BATCH = torch.Size([2])
KERNELS = {
    "RBF": lambda: gk.RBFKernel(lengthscale_constraint=log_positive()),
    "RBF ard batch": lambda: gk.RBFKernel(ard_num_dims=D, batch_shape=BATCH),
    "Matern": lambda: gk.MaternKernel(nu=0.5, active_dims=[2, 0]),
    "RQ": lambda: gk.RQKernel(alpha_constraint=Interval(0.1, 7.3), ard_num_dims=D),
    "Periodic": lambda: gk.PeriodicKernel(period_length_constraint=LessThan(3.3)),
    "Periodic ard": lambda: gk.PeriodicKernel(ard_num_dims=D),
    "Linear": lambda: gk.LinearKernel(ard_num_dims=D, variance_constraint=GreaterThan(1e-3)),
    "Polynomial": lambda: gk.PolynomialKernel(power=3, batch_shape=BATCH),
    "Cosine": lambda: gk.CosineKernel(period_length_constraint=Positive(softplus)),
    "Constant": lambda: gk.ConstantKernel(batch_shape=BATCH),
    "PiecewisePolynomial": lambda: gk.PiecewisePolynomialKernel(q=1),
    "Scale": lambda: gk.ScaleKernel(gk.RBFKernel(batch_shape=BATCH, active_dims=(1,))),
    "bounds": lambda: gk.RBFKernel(
        ard_num_dims=2,
        active_dims=(0, 1),
        lengthscale_constraint=GreaterThan(torch.tensor([0.1, 1.0])),
    ),
    "no transform": lambda: gk.RBFKernel(
        lengthscale_constraint=Interval(0.1, 9, transform=None, initial_value=2.0)
    ),
    "nested": lambda: (
        gk.ScaleKernel(gk.RBFKernel() * gk.PeriodicKernel() + gk.ConstantKernel())
        * gk.ScaleKernel(gk.MaternKernel(nu=1.5, active_dims=(0,)) + gk.LinearKernel())
    ),
}  # fmt: skip
LIKELIHOODS = {
    "Gaussian": lambda: gl.GaussianLikelihood(noise_constraint=log_positive(1e-6)),
    "Gaussian batch": lambda: gl.GaussianLikelihood(batch_shape=BATCH),
    "StudentT": lambda: gl.StudentTLikelihood(deg_free_constraint=Interval(2.5, 40)),
    "Laplace": lambda: gl.LaplaceLikelihood(batch_shape=BATCH),
    "Beta": lambda: gl.BetaLikelihood(),
    "Bernoulli": lambda: gl.BernoulliLikelihood(),
    "Poisson": lambda: gl.PoissonLikelihood(),
}


def rebuilt(module):
    """Through JSON and tensors, with all parameters moved away from their defaults before."""
    with torch.no_grad():
        for k, value in enumerate(module.parameters()):
            value.add_(0.3 * torch.randn(value.shape, generator=torch.Generator().manual_seed(k)))
    spec = json.loads(json.dumps(specs.describe(module)))
    assert spec["type"] != "custom"
    stored = {name: value.detach().clone() for name, value in specs.state(module).items()}
    return specs.rebuild(spec, stored, None, "module")


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_plain_kernels_are_rebuilt_bit_for_bit(name, double):
    kernel = KERNELS[name]()
    kernel = kernel.double() if double else kernel
    x = torch.randn(6, D, generator=torch.Generator().manual_seed(0), dtype=kernel.dtype)
    other = copy.deepcopy(kernel)
    result = rebuilt(kernel)
    assert torch.equal(result(x).to_dense(), kernel(x).to_dense())
    assert not torch.equal(other(x).to_dense(), kernel(x).to_dense())
    pairs = zip(kernel.named_parameters_and_constraints(),
                result.named_parameters_and_constraints(), strict=True)  # fmt: skip
    for (a_name, a, a_constraint), (b_name, b, b_constraint) in pairs:
        assert (a_name, type(a_constraint)) == (b_name, type(b_constraint))
        assert torch.equal(a_constraint.transform(a), b_constraint.transform(b))
        value = a_constraint.transform(a)
        assert torch.equal(
            a_constraint.inverse_transform(value), b_constraint.inverse_transform(value)
        )


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_plain_likelihoods_are_rebuilt_bit_for_bit(name):
    likelihood = LIKELIHOODS[name]()
    result = rebuilt(likelihood)
    f = torch.linspace(-1, 1, 5)
    for moment in ("mean", "variance"):
        a, b = (getattr(each(f), moment) for each in (likelihood, result))
        assert torch.equal(a, b)


def test_quadrature_is_stored_with_its_likelihood():
    torch.set_default_dtype(torch.float64)
    try:
        likelihood = gl.StudentTLikelihood()
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(rebuilt(likelihood).quadrature.locations, likelihood.quadrature.locations)


class Warped(gk.RBFKernel):
    """A user's kernel."""

    def forward(self, x1, x2, diag=False, **params):
        return super().forward(x1.tanh(), x2.tanh(), diag=diag, **params)


def test_custom_kernel_must_be_passed_again(tmp_path):
    path = tmp_path / "model"
    model = fitted(kernel=gk.ScaleKernel(Warped(ard_num_dims=D)))
    model.save(path)
    with pytest.raises(ModelFileError, match=r"because of .*Warped; .*kernel="):
        DecoupledGPRegressor.load(path)
    with pytest.raises(ModelFileError, match=r"RBFKernel at 'base_kernel'.*Warped"):
        DecoupledGPRegressor.load(path, kernel=gk.ScaleKernel(gk.RBFKernel(ard_num_dims=D)))
    with pytest.raises(ModelFileError, match=r"raw_lengthscale.*\(1, 2\).*\(1, 3\)"):
        DecoupledGPRegressor.load(path, kernel=gk.ScaleKernel(Warped(ard_num_dims=2)))
    given = gk.ScaleKernel(Warped(ard_num_dims=D))
    given.outputscale = 5.0
    model, loaded = saved_and_loaded(model, path, kernel=given)
    assert_same_predictions(model, loaded, rows()[0])
    for each in (model, loaded):
        each.partial_fit(*rows(seed=1))
    assert_same_learner(model, loaded)


def test_custom_likelihood_must_be_passed_again(tmp_path):
    class Mine(gl.LaplaceLikelihood):
        pass

    model = fitted(likelihood=Mine())
    model.save(tmp_path / "model")
    with pytest.raises(ModelFileError, match=r"Mine.*likelihood="):
        DecoupledGPRegressor.load(tmp_path / "model")
    model, loaded = saved_and_loaded(model, tmp_path / "model", likelihood=Mine())
    assert_same_predictions(model, loaded, rows()[0])


def test_shared_parameters_stay_shared(tmp_path):
    def tied():
        one, other = gk.MaternKernel(nu=0.5, active_dims=(0,)), gk.MaternKernel(active_dims=(1,))
        other.raw_lengthscale = one.raw_lengthscale
        return one + other

    model = fitted(kernel=tied())
    model.save(tmp_path / "model")
    with pytest.raises(ModelFileError, match="kernel="):
        DecoupledGPRegressor.load(tmp_path / "model")
    model, loaded = saved_and_loaded(model, tmp_path / "model", kernel=tied())
    for each in (model, loaded):
        each.partial_fit(*rows(seed=1))
    assert_same_learner(model, loaded)


def test_unusual_transform_is_custom():
    kernel = gk.RBFKernel(lengthscale_constraint=Positive(torch.square, torch.sqrt))
    assert specs.describe(kernel)["type"] == "custom"


def test_kernel_is_not_asked_for_if_the_model_has_the_default(tmp_path):
    fitted().save(tmp_path / "model")
    with pytest.raises(ModelFileError, match="leave kernel= out"):
        DecoupledGPRegressor.load(tmp_path / "model", kernel=gk.RBFKernel())


def test_priors_are_not_stored_but_may_be_passed_again(tmp_path):
    kernel = gk.MaternKernel(lengthscale_prior=GammaPrior(3.0, 6.0))
    model, loaded = saved_and_loaded(fitted(kernel=kernel), tmp_path / "model")
    assert_same_predictions(model, loaded, rows()[0])
    assert not list(loaded.kernel_.named_priors())
    again = DecoupledGPRegressor.load(tmp_path / "model", kernel=kernel)
    assert len(list(again.kernel_.named_priors())) == 1
    assert_same_predictions(model, again, rows()[0])


# ---- files that must be refused ----


@pytest.fixture(scope="module")
def small_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("small") / "model"
    fitted(n_mean_basis=4, n_cov_basis=2, max_iter=1).save(path)
    return path.read_bytes()


def refused(path, match="cannot load"):
    with pytest.raises(ModelFileError, match=match) as caught:
        DecoupledGPRegressor.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("mask", [0x01, 0x29])  # 0x29 turns a blank into a tab: JSON all the same
def test_any_changed_byte_is_noticed(mask, small_file, tmp_path):
    path = tmp_path / "model"
    path.write_bytes(small_file)
    DecoupledGPRegressor.load(path)
    with open(path, "r+b", buffering=0) as file:
        for k, byte in enumerate(small_file):
            file.seek(k)
            file.write(bytes([byte ^ mask]))
            refused(path)
            file.seek(k)
            file.write(bytes([byte]))
    DecoupledGPRegressor.load(path)


def test_truncated_or_lengthened_files(small_file, tmp_path):
    path = tmp_path / "model"
    n = len(small_file)
    for length in {0, 1, 7, 8, 9, n - 1, n - 8, *range(0, n, 97)}:
        path.write_bytes(small_file[:length])
        refused(path, "empty" if length == 0 else "no decoupledgp model file|damaged|cut short")
    path.write_bytes(small_file + b"\0")
    refused(path, "damaged")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"some text, longer than eight bytes",
        b"\x80\x04\x95" + bytes(40),
        (2**63).to_bytes(8, "little") + bytes(50),
        (10).to_bytes(8, "little") + b"[[[[[[[[[[",
        (200_000).to_bytes(8, "little") + b"[" * 200_000,
        (2).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (2).to_bytes(8, "little") + b"\xff\xff",
    ],
)
def test_files_that_are_no_models(data, tmp_path):
    (tmp_path / "other").write_bytes(data)
    refused(tmp_path / "other")


def test_other_safetensors_files(tmp_path):
    for metadata in (None, {"format": "pt"}, {"format": "decoupledgp"}):
        save_file({"weight": torch.ones(3)}, tmp_path / "other", metadata=metadata)
        refused(tmp_path / "other", "no decoupledgp model file")


def test_newer_format_is_named_before_anything_else_is_read(tmp_path):
    metadata = {"format": "decoupledgp", "format_version": "2", "content": "{not JSON"}
    save_file({"weight": torch.ones(3)}, tmp_path / "newer", metadata=metadata)
    refused(tmp_path / "newer", "format version 2.*newer decoupledgp")


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        DecoupledGPRegressor.load(tmp_path / "nowhere")
    with pytest.raises(OSError, match=str(tmp_path)):
        DecoupledGPRegressor.load(tmp_path)


def test_other_class(tmp_path):
    class Other(DecoupledGPRegressor):
        pass

    fitted().save(tmp_path / "model")
    with pytest.raises(ModelFileError, match="holds a DecoupledGPRegressor, not a Other"):
        Other.load(tmp_path / "model")


@pytest.fixture(scope="module")
def forge():
    """Writes a file whose digest is right but whose contents a hostile `change` has been at."""
    model = fitted(kernel=gk.RBFKernel(ard_num_dims=D), likelihood=gl.StudentTLikelihood())

    def write(path, change):
        content = json.loads(json.dumps(contents._content(model), default=contents._plain))
        tensors = contents._tensors(model)
        change(content, tensors)
        path.write_bytes(file.pack(tensors, json.dumps(content)))

    return write


HUGE = 10**12
FORGERIES = {
    "mean basis": lambda c, t: c["run"].update(n_mean_basis=HUGE),
    "cov basis": lambda c, t: c["run"].update(n_cov_basis=HUGE),
    "ard": lambda c, t: c["kernel"].update(ard_num_dims=HUGE),
    "batch": lambda c, t: c["kernel"].update(batch_shape=[HUGE, HUGE]),
    "strings": lambda c, t: c["kernel"].update(batch_shape=["a", HUGE]),
    "nodes": lambda c, t: c["likelihood"].update(n_nodes=10**6),
    "kernel class": lambda c, t: c["kernel"].update({"type": "os.system"}),
    "custom class": lambda c, t: c["kernel"].update({"type": "custom", "class": "os.system"}),
    "transform": lambda c, t: c["kernel"]["constraints"]["raw_lengthscale"].update(
        transform="eval"
    ),
    "no run": lambda c, t: c.pop("run"),
    "dtype": lambda c, t: c["run"].update(dtype="load"),
    "other dtype": lambda c, t: c["run"].update(dtype="float64"),
    "argument": lambda c, t: c["params"].update(surprise=1),
    "argument's type": lambda c, t: c["params"].update(n_mean_basis="many"),
    "rng": lambda c, t: c["run"]["rng"].update(bit_generator="MT19937"),
    "setting": lambda c, t: c["run"]["settings"].update(batch_size="x"),
    "steps": lambda c, t: c["run"].update(iteration=-1),
    "history": lambda c, t: c["run"].update(history=[1]),
    "names": lambda c, t: c.update(feature_names_in_=["a"]),
    "features": lambda c, t: c.update(n_features_in_=D + 1),
    "no tensor": lambda c, t: t.pop("posterior/cov_factor"),
    "tensor's shape": lambda c, t: t.update({"posterior/mean_coefficients": torch.zeros(12, 2)}),
    "moment": lambda c, t: t.update({"adam/posterior.mean_coefficients.exp_avg": torch.zeros(1)}),
    "half a moment": lambda c, t: t.pop("adam/posterior.mean_coefficients.exp_avg_sq"),
    "scaler": lambda c, t: t.update({"x_scaler/scale": torch.ones(D + 1)}),
    "scaler's type": lambda c, t: t.update({"x_scaler/varies": torch.ones(D)}),
    "first rows": lambda c, t: t.update(
        {"first_rows/0.x": torch.ones(2, D + 1), "first_rows/0.y": torch.ones(2, 1)}
    ),
}  # fmt: skip


OVERSIZED = {
    "mean basis": "the size of mean_coefficients",
    "cov basis": "the size of cov_factor",
    "ard": "its kernel claims to be larger",
    "batch": "its kernel claims to be larger",
    "strings": "are no sizes",
    "nodes": "its likelihood claims to be larger",
}


@pytest.mark.parametrize("name", FORGERIES)
def test_contents_that_do_not_fit_together(name, forge, tmp_path):
    forge(tmp_path / "model", lambda content, tensors: None)
    DecoupledGPRegressor.load(tmp_path / "model")
    forge(tmp_path / "model", FORGERIES[name])
    refused(tmp_path / "model", OVERSIZED.get(name, "cannot load"))


def test_file_is_plain_safetensors(tmp_path):
    fitted().save(tmp_path / "model")
    with safe_open(tmp_path / "model", framework="pt") as file:
        assert file.metadata()["format_version"] == "1"
        assert json.loads(file.metadata()["content"])["class"] == "DecoupledGPRegressor"
        assert "posterior/cov_factor" in file.keys()  # noqa: SIM118 - no dictionary


# ---- saving ----


@pytest.fixture(params=["nameless", "named"])
def way_to_write(request, monkeypatch):
    if request.param == "named":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    return request.param


@pytest.mark.parametrize("function", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_failure_leaves_the_old_file_and_nothing_else(
    function, error, way_to_write, tmp_path, monkeypatch
):
    path = tmp_path / "model"
    model = fitted()
    model.save(path)
    old = path.read_bytes()

    def fail(*args):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, function, fail)
        with pytest.raises(type(error)) as caught:
            model.partial_fit(*rows(seed=1)).save(path)
    if isinstance(error, OSError):
        assert "cannot save here (No space left)" in str(caught.value)
        assert caught.value.filename == str(path)
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["model"]
    model.save(path)
    assert DecoupledGPRegressor.load(path).n_iter_ == model.n_iter_


def test_places_that_cannot_be_written_to(tmp_path):
    model = fitted()
    with pytest.raises(IsADirectoryError, match="add a file name"):
        model.save(tmp_path)
    with pytest.raises(FileNotFoundError, match="create it first"):
        model.save(tmp_path / "nowhere" / "model")
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="create it first"):
        model.save(tmp_path / "file" / "model")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may do anything")
def test_folder_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError, match="cannot save here"):
        fitted().save(tmp_path / "model")
    tmp_path.chmod(0o700)


def test_permissions_and_links_are_kept(way_to_write, tmp_path):
    model = fitted()
    (tmp_path / "folder").mkdir()
    real, link = tmp_path / "folder" / "model", tmp_path / "latest"
    model.save(real)
    assert stat.S_IMODE(real.stat().st_mode) == 0o666 & ~current_umask()
    real.chmod(0o640)
    link.symlink_to(real)
    model.partial_fit(*rows(seed=1)).save(str(link))
    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert DecoupledGPRegressor.load(real).n_iter_ == model.n_iter_


def current_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


SAVE_FOREVER = """
import os, sys, time
from decoupledgp import DecoupledGPRegressor
from decoupledgp.storage import file

half_way, any_time = sys.argv[1:]
model = DecoupledGPRegressor.load(any_time)
write = file._write_and_sync

def stop_half_way(file, data):
    file.write(data[: len(data) // 2])
    file.flush()
    print(os.getpid(), flush=True)
    time.sleep(60)

def in_pieces(file, data):
    for k in range(0, len(data), 1000):
        file.write(data[k : k + 1000])
        file.flush()
    write(file, b"")

if os.fork() == 0:
    file._write_and_sync = stop_half_way
    model.save(half_way)
    os._exit(1)
file._write_and_sync = in_pieces
model.partial_fit([[0, 0, 0]], [0])
model.save(any_time)
print(os.getpid(), flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    model.save(any_time)
"""


def can_write_nameless(folder):
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_WRONLY))
    except (AttributeError, OSError):
        return False
    return True


@pytest.mark.skipif(not hasattr(os, "fork"), reason="signals and forks are Unix")
def test_killed_processes_leave_a_whole_file(tmp_path):
    """One is killed in the middle of writing, another while it saves over and over."""
    model = fitted()
    paths = [tmp_path / way / "model" for way in ("half-way", "any time")]
    for path in paths:
        path.parent.mkdir()
        model.save(path)
    old = paths[0].read_bytes()
    process = subprocess.Popen([sys.executable, "-c", SAVE_FOREVER, *paths], stdout=subprocess.PIPE)
    processes = [int(process.stdout.readline()) for _ in paths]
    time.sleep(0.05)
    for number in processes:
        os.kill(number, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert paths[0].read_bytes() == old
    if can_write_nameless(tmp_path):
        assert os.listdir(paths[0].parent) == ["model"]
    survivor = DecoupledGPRegressor.load(paths[1])
    assert survivor.n_iter_ == model.n_iter_ + 1
    model.partial_fit([[0, 0, 0]], [0])
    assert_same_predictions(model, survivor, rows()[0])
