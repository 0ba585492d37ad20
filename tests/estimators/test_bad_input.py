"""Bad input gives one clear error."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import (
    BetaLikelihood,
    GaussianLikelihood,
    MultitaskGaussianLikelihood,
    SoftmaxLikelihood,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn.exceptions import NotFittedError

from decoupledgp import DecoupledGPRegressor
from small_tables import X, Y, raised, small, y


def bad_cells(*cells, names=None, kind=np.array, n=40):
    """Return X with some cells replaced, as an array or a frame."""
    table = X[:n].copy()
    for row, column, value in cells:
        table[row, column] = value
    return table if names is None else kind(dict(zip(names, table.T, strict=True)))


BAD_X = {
    "nan": (bad_cells((5, 1, np.nan)), "NaN.*column 1 has 1 .*row 5.*drop"),
    "inf": (bad_cells((5, 0, np.inf)), "inf.*column 0 has 1 .*row 5.*drop"),
    "-inf": (bad_cells((5, 0, -np.inf)), "inf.*column 0 has 1 .*row 5.*drop"),
    "both infinities": (
        bad_cells((9, 1, np.inf), (7, 1, -np.inf)),
        "inf.*column 1 has 2 .*row 7.*drop",
    ),
    "first of several": (
        bad_cells((9, 0, np.nan), (2, 0, np.nan), (7, 0, np.inf), (1, 1, np.nan)),
        "NaN.*column 0 has 3 .*row 2",
    ),
    "float32": (
        bad_cells((9, 1, np.inf), (7, 1, -np.inf)).astype(np.float32),
        "inf.*column 1 has 2 .*row 7",
    ),
    "None": (bad_cells((5, 1, np.nan)).astype(object), "column 1 has 1 .*row 5"),
    "pandas": (
        bad_cells((5, 1, np.nan), names=["torque", "speed"], kind=pd.DataFrame),
        "NaN.*column 'speed' has 1 .*row 5",
    ),
    "polars": (
        bad_cells((5, 1, np.inf), names=["torque", "speed"], kind=pl.DataFrame),
        "inf.*column 'speed' has 1 .*row 5",
    ),
    "pandas NA": (
        pd.DataFrame({"torque": pd.array([1, None] * 20, dtype="Int64"), "speed": y}),
        "column 'torque' has 20 .*row 1",
    ),
    "polars null": (
        pl.DataFrame({"torque": [1, None] * 20, "speed": y}),
        "column 'torque' has 20 .*row 1",
    ),
    "1-D": (y, "Expected 2D array.*1D array.*[Rr]eshape"),
    "3-D": (X[None], "dim 3.*dim <= 2"),
    "scalar": (1.0, "Expected 2D array"),
    "no rows": (X[:0], "0 sample.*minimum of 1"),
    "no columns": (X[:, :0], "0 feature.*minimum of 1"),
    "words": (np.array([["low", "high"]] * 40), "convert string to float.*low"),
    "words as objects": (np.array([["low", 1]] * 40, dtype=object), "string to float.*low"),
    "words in pandas": (pd.DataFrame({"a": ["low"] * 40, "b": y}), "string to float.*low"),
    "words in polars": (pl.DataFrame({"a": ["low"] * 40, "b": y}), "string to float.*low"),
    "complex": (X + 1j, "Complex data not supported"),
    "ragged": ([[1.0, 2.0], [3.0]] * 20, "inhomogeneous"),
}

BAD_Y = {
    "nan": (np.where(np.arange(40) == 7, np.nan, y), "y .*NaN.* 1 .*row 7.*drop"),
    "inf": (np.where(np.arange(40) == 7, -np.inf, y), "y .*inf.* 1 .*row 7.*drop"),
    "both infinities": (
        np.where(np.arange(40) == 7, -np.inf, np.where(np.arange(40) == 9, np.inf, y)),
        "y .*inf.* 2 .*row 7",
    ),
    "second output": (
        np.column_stack([y, np.where(np.arange(40) == 7, np.nan, y)]),
        "y .*NaN.*column 1 has 1 .*row 7",
    ),
    "None": (np.array([None, *y[1:]], dtype=object), "y .*NaN.* 1 .*row 0"),
    "pandas": (pd.Series(np.where(y > 1, np.nan, y)), "y .*NaN.*row"),
    "polars": (pl.Series([None, *y[1:]]), "y .*NaN.* 1 .*row 0"),
    "too short": (y[:-1], r"inconsistent.*\[40, 39\]"),
    "no columns": (np.empty((40, 0)), "0 feature|no columns"),
    "3-D": (y[:, None, None], "dim 3.*dim <= 2"),
    "none at all": (None, "requires y"),
    "words": (np.array(["low"] * 40), "string.*low|numeric"),
    "words as objects": (np.array(["low"] * 40, dtype=object), "string.*low|numeric"),
    "words in pandas": (pd.Series(["low"] * 40), "string.*low|numeric"),
    "complex": (y + 1j, "Complex data not supported"),
}


@pytest.mark.parametrize("name", BAD_X)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_bad_features_are_one_clear_error(method, name):
    table, match = BAD_X[name]
    model = small()
    target = y[: len(table)] if hasattr(table, "__len__") else y
    raised(lambda: getattr(model, method)(table, target), ValueError, f"(?s){match}")
    raised(lambda: model.predict(X), NotFittedError, "not fitted")


@pytest.mark.parametrize("name", [name for name in BAD_X if name not in ("pandas", "polars")])
def test_bad_features_to_predict_are_the_same_error(name):
    table, match = BAD_X[name]
    names = list(table.columns) if hasattr(table, "columns") else None
    train = X if names is None else pd.DataFrame(X, columns=names)
    model = small().fit(train, y)
    before = model.predict(train)
    for call in (model.predict, model.sample_y):
        raised(lambda call=call: call(table), ValueError, f"(?s){match}")
    assert_array_equal(model.predict(train), before)


@pytest.mark.parametrize("name", BAD_Y)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_bad_targets_are_one_clear_error(method, name):
    target, match = BAD_Y[name]
    model = small()
    raised(lambda: getattr(model, method)(X, target), ValueError, f"(?s){match}")
    raised(lambda: model.predict(X), NotFittedError, "not fitted")


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_sparse_tables_are_refused(method):
    call = getattr(small(), method)
    raised(lambda: call(sparse.csr_matrix(X), y), TypeError, "[Ss]parse.*dense.*toarray")
    raised(lambda: call(X, sparse.csr_matrix(Y)), TypeError, "[Ss]parse.*dense.*toarray")


@given(
    cells=st.dictionaries(
        st.tuples(st.integers(0, 11), st.integers(0, 1)),
        st.sampled_from([np.nan, np.inf, -np.inf]),
        min_size=1,
        max_size=6,
    )
)
@settings(deadline=None)
def test_any_bad_cells_are_named(cells):
    """The first column that has some: how many, and where the first of them is."""
    table = bad_cells(*((*at, value) for at, value in cells.items()), n=12)
    column = min(column for _, column in cells)
    rows = [row for row, of in cells if of == column]
    message = raised(lambda: small().fit(table, y[:12]), ValueError, "drop")
    assert f"column {column} has {len(rows)} " in message
    assert f"row {min(rows)})" in message


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_large_finite_numbers_are_no_error(kind):
    """Though their sum is infinite."""
    table = (np.sign(X) * 0.9 * float(np.finfo(kind).max)).astype(kind)
    table[:, 1] = np.abs(table[:, 1])
    assert np.isfinite(small().fit(table, y).predict(table, return_std=True)).all()


@pytest.mark.parametrize("method", ["partial_fit", "elbo"])
def test_more_rows_must_look_like_the_first(method):
    model = small().fit(X, y)
    before = model.predict(X)
    call = getattr(model, method)
    raised(lambda: call(X[:, :1], y), ValueError, "1 features.*expecting 2")
    raised(lambda: call(X, Y), ValueError, "2 outputs.*has 1")
    raised(lambda: call(bad_cells((5, 1, np.nan)), y), ValueError, "column 1 has 1 .*row 5")
    assert_array_equal(model.predict(X), before)
    assert model.n_rows_ == 40


def test_a_stream_may_begin_anew_after_a_refused_first_chunk():
    model = small()
    raised(lambda: model.partial_fit(bad_cells((5, 1, np.nan)), y), ValueError, "row 5")
    wide = np.column_stack([X, X])
    assert model.partial_fit(wide, Y).predict(wide).shape == (40, 2)


@pytest.mark.parametrize("method", ["predict", "sample_y", "elbo"])
def test_a_model_must_be_fitted_first(method):
    arguments = (X, y) if method == "elbo" else (X,)
    raised(lambda: getattr(small(), method)(*arguments), NotFittedError, "Call 'fit'")


def test_deviation_and_covariance_are_not_both_given():
    model = small().fit(X, y)
    both = {"return_std": True, "return_cov": True}
    raised(lambda: model.predict(X, **both), RuntimeError, "return_std.*return_cov")


INVALID = {
    "n_mean_basis": [0, -1, 1.5, "many"],
    "n_cov_basis": [-1, 1.5, "many"],
    "family": ["unknown", None],
    "solver": ["unknown", 1],
    "max_seconds": [0, -1, np.nan, "soon"],
    "half_life": [0, -1, np.nan, "long"],
    "warp_inputs": ["yes", 2],
    "basis_choice": ["best", None],
    "kernel": ["rbf", MaternKernel],
    "basis": ["unknown", 3],
    "likelihood": ["gaussian", GaussianLikelihood],
    "max_iter": [0, 1.5],
    "batch_size": [0, 1.5],
    "basis_increment": [0, 1.5],
    "kl_batch_size": [0, 1.5],
    "learning_rate": [0, -1, np.nan, np.inf, "fast"],
    "natural_rate": [0, -1, 2, np.nan, "fast"],
    "mean_preconditioner": ["unknown", "full", None],
    "cov_preconditioner": ["unknown", "nystrom", None],
    "partially_shared": ["yes", None],
    "dtype": ["float16", None, np.float32],
    "device": ["unknown", 0],
    "random_state": ["seed", -1],
    "verbose": [-1, "yes"],
    "callbacks": [print, ["print"]],
    "preset": ["unknown", 1],
}


def test_every_argument_has_invalid_values_to_test():
    assert set(INVALID) == set(DecoupledGPRegressor().get_params())


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in INVALID.items() for value in values]
)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_invalid_arguments_are_refused_by_name(method, name, value):
    model = small(**{name: value})
    raised(lambda: getattr(model, method)(X, y), ValueError, f"{name}.*must be.*Got")
    raised(lambda: model.predict(X), NotFittedError, "not fitted")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device exists")
def test_a_device_that_is_not_there_is_refused():
    raised(lambda: small(device="cuda").fit(X, y), ValueError, "device.*cuda")


@pytest.mark.parametrize("kernel", [MaternKernel(), ScaleKernel(MaternKernel())])
def test_the_multiscale_basis_is_refused_for_other_kernels(kernel):
    model = small(basis="multiscale", kernel=kernel)
    raised(lambda: model.fit(X, y), ValueError, 'MaternKernel.*basis="points"')
    raised(lambda: model.predict(X), NotFittedError, "not fitted")


@pytest.mark.parametrize(
    "kernel",
    [
        RBFKernel(ard_num_dims=5),
        MaternKernel(ard_num_dims=5),
        ScaleKernel(MaternKernel(ard_num_dims=5)),
        MaternKernel(active_dims=[7]),
        MaternKernel(batch_shape=torch.Size([3])),
        ScaleKernel(RBFKernel(), batch_shape=torch.Size([3])),
    ],
    ids=["rbf", "matern", "scaled", "active_dims", "batch", "scales"],
)
def test_kernels_for_other_tables_are_refused(kernel):
    raised(lambda: small(kernel=kernel).fit(X, y), ValueError, "kernel")


def test_a_likelihood_for_other_outputs_is_refused():
    likelihood = GaussianLikelihood(batch_shape=torch.Size([3]))
    raised(lambda: small(likelihood=likelihood).fit(X, Y), ValueError, "likelihood")


@pytest.mark.parametrize(
    "likelihood",
    [
        MultitaskGaussianLikelihood(num_tasks=2),
        SoftmaxLikelihood(num_features=2, num_classes=3),
    ],
    ids=lambda likelihood: type(likelihood).__name__,
)
def test_likelihoods_of_several_functions_are_refused(likelihood):
    raised(lambda: small(likelihood=likelihood).fit(X, Y), ValueError, "likelihood.*one")


@pytest.mark.parametrize("target", [y, 1e9 * y, (y > 0) * 1.0], ids=["any", "large", "0 and 1"])
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_targets_that_a_likelihood_cannot_have_are_refused(method, target):
    """Beta's lie within 0 and 1; on the edges its density is none."""
    call = getattr(small(likelihood=BetaLikelihood()), method)
    raised(lambda: call(X, target), ValueError, "BetaLikelihood does not allow")


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_dates_are_no_targets(method):
    dates = np.arange(40).astype("datetime64[D]")
    raised(lambda: getattr(small(), method)(X, dates), (TypeError, ValueError), "date.*number")
