"""Bad input gives a correct model or one clear error, never a NaN or a failed Cholesky."""

import signal
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

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
    StudentTLikelihood,
)
from gpytorch.likelihoods.likelihood import _OneDimensionalLikelihood
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.exceptions import NotFittedError
from sklearn.utils._param_validation import InvalidParameterError

from decoupledgp import DecoupledGPRegressor, ExactGPRegressor, SVGPRegressor
from decoupledgp.learners import GradientLearner

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 2))
Y = np.column_stack([np.sin(2 * X[:, 0]) + X[:, 1], X[:, 0] * X[:, 1]])
y = Y[:, 0]
DTYPES = ("float32", "float64")


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tables this small are slower with more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def small(**options):
    """Return a model that learns little, but grows its bases and samples its KL as ever."""
    sizes = {"n_mean_basis": 20, "n_cov_basis": 8, "batch_size": 16, "max_iter": 8}
    steps = {"basis_increment": 6, "kl_batch_size": 12, "random_state": 0}
    return DecoupledGPRegressor(**{**sizes, **steps, **options})


# --- any finite table gives a finite model -------------------------------------------------------


def outlier(rng, n, size):
    """Normal values but for one, at a random row."""
    column = rng.standard_normal(n)
    column[rng.integers(n)] = size
    return column


def late(rng, n, first, size):
    """Constant in the first rows, normal in the later ones."""
    return np.where(np.arange(n) < 0.6 * n, first, first + size * rng.standard_normal(n))


def drifting(rng, n, size):
    """Normal, but the last rows lie many standard deviations away from the first."""
    return rng.standard_normal(n) + size * (np.arange(n) >= 0.85 * n)


COLUMNS = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "constant": lambda rng, n: np.full(n, 3.7),
    "zero": lambda rng, n: np.zeros(n),
    "huge constant": lambda rng, n: np.full(n, -1e150),
    "1e9": lambda rng, n: 1e9 * rng.standard_normal(n),
    "1e-9": lambda rng, n: 1e-9 * rng.standard_normal(n),
    "1e150": lambda rng, n: 1e150 * rng.standard_normal(n),
    "1e-150": lambda rng, n: 1e-150 * rng.standard_normal(n),
    "subnormal": lambda rng, n: rng.choice([0, 5e-324], n),
    "integers": lambda rng, n: rng.integers(-3, 4, n).astype(float),
    "offset": lambda rng, n: 1e9 + 1e-3 * rng.standard_normal(n),
    "rounding": lambda rng, n: 1e9 * (1 + rng.choice([0, 2e-16], n)),
    "heavy": lambda rng, n: rng.standard_cauchy(n) ** 3,
    "very heavy": lambda rng, n: rng.standard_cauchy(n) ** 15,
    "rare": lambda rng, n: (rng.random(n) < 0.1).astype(float),
    "outlier 1e9": partial(outlier, size=1e9),
    "outlier 1e20": partial(outlier, size=-1e20),
    "late": partial(late, first=0.1, size=1.0),
    "late 1e9": partial(late, first=-2.0, size=1e9),
    "late 1e-9": partial(late, first=1.0, size=1e-9),
    "drifting 1e3": partial(drifting, size=1e3),
    "drifting 1e5": partial(drifting, size=1e5),
    "drifting 1e12": partial(drifting, size=1e12),
}
UNUSUAL_TARGETS = ("1e150", "1e-150", "huge constant", "subnormal")  # their squares are no numbers
TARGETS = {name: make for name, make in COLUMNS.items() if name not in UNUSUAL_TARGETS}
OPTIONS = (
    {},
    {"basis": "points"},
    {"kernel": MaternKernel(nu=2.5)},
    {"partially_shared": True},
    {"mean_preconditioner": "none", "cov_preconditioner": "none"},
    {"mean_preconditioner": "nystrom", "cov_preconditioner": "full"},
    {"n_cov_basis": 0},
    {"n_mean_basis": 1, "n_cov_basis": 1, "batch_size": 1, "max_iter": 40},
)


@dataclass
class Table:
    """A table, and what it was made from, for reading a failure."""

    columns: list[str]
    targets: list[str]
    n: int
    distinct: int
    seed: int
    flat: bool
    copies_first_column: bool
    X: np.ndarray = field(init=False, repr=False)
    y: np.ndarray = field(init=False, repr=False)

    def __post_init__(self):
        rng = np.random.default_rng(self.seed)
        X = np.column_stack([COLUMNS[name](rng, self.n) for name in self.columns])
        Y = np.column_stack([TARGETS[name](rng, self.n) for name in self.targets])
        if self.copies_first_column:
            X[:, -1] = X[:, 0]
        again = np.arange(self.n) % self.distinct
        self.X, self.y = X[again], Y[again, 0] if self.flat else Y[again]


@st.composite
def tables(draw):
    n = draw(st.integers(1, 40))
    columns = draw(st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=4))
    targets = draw(st.lists(st.sampled_from(list(TARGETS)), min_size=1, max_size=3))
    return Table(
        columns,
        targets,
        n=n,
        distinct=draw(st.one_of(st.just(n), st.integers(1, n))),
        seed=draw(st.integers(0, 2**16)),
        flat=len(targets) == 1 and draw(st.booleans()),
        copies_first_column=draw(st.booleans()),
    )


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


def check_model(model, X, y):
    largest = np.where(X.any(0), np.abs(X).max(0), 1)
    deviation = largest * (X / largest).std(0)
    far = X.mean(0) + 1e12 * np.where(deviation > 0, deviation, 1) * [[1], [-1]]
    for rows in (X, far, np.full((1, X.shape[1]), 1e300)):
        check_predictions(model, rows, y)
    assert np.isfinite(model.elbo(X, y))
    assert np.isfinite([[record["elbo"], record["nmse"]] for record in model.history_]).all()
    assert model.n_rows_ == len(X)


@given(table=tables(), options=st.sampled_from(OPTIONS), dtype=st.sampled_from(DTYPES))
@settings(max_examples=20, deadline=None)
def test_fit_on_any_finite_table_gives_finite_predictions(table, options, dtype):
    check_model(small(dtype=dtype, **options).fit(table.X, table.y), table.X, table.y)


@given(
    table=tables(),
    cuts=st.lists(st.integers(1, 39), max_size=8),
    options=st.sampled_from(OPTIONS),
    dtype=st.sampled_from(DTYPES),
)
@settings(max_examples=20, deadline=None)
def test_partial_fit_on_any_finite_chunks_gives_finite_predictions(table, cuts, options, dtype):
    model = small(dtype=dtype, **options)
    edges = sorted({0, table.n, *(cut for cut in cuts if cut < table.n)})
    for start, stop in pairwise(edges):
        model.partial_fit(table.X[start:stop], table.y[start:stop])
        check_predictions(model, table.X[:stop], table.y[:stop])
    check_model(model, table.X, table.y)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1e5, 1e9, 1e30, 1e160])
@pytest.mark.parametrize("basis", ["multiscale", "points"])
@pytest.mark.parametrize("n", [1, 2])
def test_rows_far_from_all_others(n, basis, size, dtype):
    """Length-scales cannot be right for both; the exponentials must not overflow for either.

    Two on opposite sides leave the centre among the others, whose distances then do not vanish.
    """
    far = X.copy()
    far[3 : 3 + n] = [[size], [-size]][:n]
    for batch_size in (16, 40):
        model = small(dtype=dtype, basis=basis, batch_size=batch_size)
        check_model(model.fit(far, y), far, y)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1e3, 1e5, 1e9, 1e15])
@pytest.mark.parametrize("basis", ["multiscale", "points"])
def test_a_stream_that_leaves_where_it_began(basis, size, dtype):
    model = small(dtype=dtype, basis=basis).partial_fit(X, y)
    for _ in range(5):
        model.partial_fit(X + size, y)
    assert np.isfinite(model.predict(np.vstack([X, X + size]), return_std=True)).all()
    assert np.isfinite(model.elbo(X + size, y))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("basis", ["multiscale", "points"])
@pytest.mark.parametrize(("size", "learns_far"), [(1e3, True), (1e9, False)])
def test_far_rows_do_not_spoil_what_is_learnt_of_near_ones(size, learns_far, basis, dtype):
    """Squared distances that are all rounding error have gradients that are, too."""
    sizes = {"n_mean_basis": 80, "n_cov_basis": 20, "basis_increment": 8}
    model = small(dtype=dtype, basis=basis, **sizes).partial_fit(X, y)
    for _ in range(20):
        model.partial_fit(np.vstack([X, X + size]), np.tile(y, 2))
    assert model.score(X, y) > 0.7
    assert model.score(X + size, y) > 0.7 or not learns_far


@pytest.mark.parametrize(("n", "batch_size"), [(1, 3), (5, 1), (5, 3), (35, 16), (40, 16)])
def test_rows_are_counted_once_however_they_are_cut_into_batches(n, batch_size):
    model = small(batch_size=batch_size, max_iter=15).fit(X[:n], y[:n])
    assert model.n_rows_ == n


@pytest.mark.parametrize("learning_rate", [3.0, 10.0, 1e4])
def test_a_learning_rate_too_large_is_refused_or_survived(learning_rate):
    model = small(learning_rate=learning_rate, max_iter=30)
    try:
        model.fit(X, y)
    except InvalidParameterError:
        return
    assert np.isfinite(model.predict(X, return_std=True)).all()


# --- correct models ------------------------------------------------------------------------------


def assert_same_predictions(model, rows, other, other_rows, tolerance=1e-6):
    """Mean and standard deviation agree relative to the size of the standard deviation."""
    (mean, std), (expected, scale) = (
        m.predict(r, return_std=True) for m, r in ((model, rows), (other, other_rows))
    )
    assert_allclose(mean, expected, rtol=tolerance, atol=tolerance * scale.min())
    assert_allclose(std, scale, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factor", [1e9, 1e-9, -1.0, 1e150, 1e-150, [1e9, 1e-9]])
def test_scaling_features_changes_no_prediction(factor, dtype):
    model, scaled = small(dtype=dtype).fit(X, Y), small(dtype=dtype).fit(X * factor, Y)
    new = RNG.standard_normal((10, 2))
    assert_same_predictions(scaled, new * factor, model, new)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-3), ("float64", 1e-6)])
def test_shifting_features_changes_no_prediction(dtype, tolerance):
    """But for the digits that the shift costs, which float32 may round to its next number."""
    moved = X + np.array([1e4, -300])
    model, shifted = small(dtype=dtype).fit(X, Y), small(dtype=dtype).fit(moved, Y)
    assert_same_predictions(shifted, moved, model, X, tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factor", [1e9, 1e-9, 1e100])
def test_scaling_targets_scales_mean_and_deviation(factor, dtype):
    model, scaled = small(dtype=dtype).fit(X, y), small(dtype=dtype).fit(X, factor * y)
    for result, expected in zip(
        scaled.predict(X, return_std=True), model.predict(X, return_std=True), strict=True
    ):
        assert_allclose(result, factor * expected, rtol=1e-6, atol=1e-6 * factor)
    cov, expected = (m.predict(X, return_cov=True)[1] for m in (scaled, model))
    assert_allclose(cov / factor**2, expected, rtol=1e-6, atol=1e-9)
    assert_allclose(scaled.sample_y(X) / factor, model.sample_y(X), rtol=1e-5, atol=1e-5)
    volume = len(X) * np.log(factor)
    assert_allclose(scaled.elbo(X, factor * y), model.elbo(X, y) - volume, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_shifting_targets_shifts_the_mean(dtype):
    model, shifted = small(dtype=dtype).fit(X, y), small(dtype=dtype).fit(X, y + 1e3)
    (mean, std), (expected, scale) = (m.predict(X, return_std=True) for m in (shifted, model))
    assert_allclose(mean - 1e3, expected, atol=1e-4)
    assert_allclose(std, scale, rtol=1e-4)


class UnitNoise(_OneDimensionalLikelihood):
    """Gaussian noise that the package does not know, so that it leaves the targets as they are."""

    def forward(self, function_samples, *arguments, **options):
        return torch.distributions.Normal(function_samples, 1.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("likelihood", [None, UnitNoise()], ids=["standardised", "as they are"])
def test_targets_are_not_clipped(likelihood, dtype):
    """The bound of Gaussian noise falls with the square of an error, however large it is."""
    model = small(dtype=dtype, likelihood=likelihood).fit(X, y)
    once, twice = (model.elbo(X, size * y) for size in (1e7, 2e7))
    assert_allclose(twice, 4 * once, rtol=1e-3)


WHOLE = RNG.integers(0, 9, (40, 3))
NAMES = ["a", "b", "c"]


@pytest.mark.parametrize(
    "same",
    [
        WHOLE,
        WHOLE.astype(np.uint8),
        WHOLE.astype(np.float16),
        WHOLE.astype(np.float32),
        WHOLE.astype(np.longdouble),
        WHOLE.astype(object),
        WHOLE.tolist(),
        np.asfortranarray(WHOLE),
        pd.DataFrame(WHOLE, columns=NAMES),
        pd.DataFrame(WHOLE, columns=NAMES).astype({"a": "float32", "b": object, "c": "Int64"}),
        pd.DataFrame(WHOLE.astype(float), columns=NAMES, index=np.arange(40)[::-1]),
        pl.DataFrame(WHOLE, schema=NAMES),
        pl.DataFrame(WHOLE, schema={"a": pl.Int8, "b": pl.Float32, "c": pl.Float64}),
    ],
    ids=lambda table: f"{type(table).__module__}.{type(table).__name__}",
)
def test_any_container_of_the_same_numbers_gives_the_same_model(same):
    model, other = small().fit(WHOLE.astype(float), y), small().fit(same, y)
    expected = model.predict(WHOLE.astype(float), return_std=True)
    assert_allclose(other.predict(same, return_std=True), expected, rtol=1e-5, atol=1e-5)
    streamed = small().partial_fit(WHOLE.astype(float), y).predict(WHOLE.astype(float))
    assert_allclose(small().partial_fit(same, y).predict(same), streamed, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "same",
    [
        WHOLE[:, 0],
        WHOLE[:, 0].astype(object),
        WHOLE[:, 0].astype(np.float32),
        WHOLE[:, 0].tolist(),
        pd.Series(WHOLE[:, 0], index=np.arange(40)[::-1]),
        pl.Series(WHOLE[:, 0]),
    ],
    ids=lambda target: f"{type(target).__module__}.{type(target).__name__}",
)
def test_any_container_of_the_same_targets_gives_the_same_model(same):
    expected = small().fit(X, WHOLE[:, 0].astype(float)).predict(X)
    result = small().fit(X, same).predict(X)
    assert result.shape == (40,)
    assert_array_equal(result, expected)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_frames_of_targets_give_a_column_per_output(frame):
    expected = small().fit(X, Y).predict(X)
    target = frame({"u": Y[:, 0], "v": Y[:, 1]})
    assert_array_equal(small().fit(X, target).predict(X), expected)


def test_yes_and_no_are_one_and_zero():
    assert_array_equal(small().fit(X, y > 0).predict(X), small().fit(X, 1.0 * (y > 0)).predict(X))


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_frames_leave_their_names(frame, method):
    table = frame({"left": X[:, 0], "right": X[:, 1]})
    model = getattr(small(), method)(table, y)
    assert_array_equal(model.feature_names_in_, ["left", "right"])
    assert not hasattr(small().fit(X, y), "feature_names_in_")
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame({"right": X[:, 1], "left": X[:, 0]}))


def test_targets_of_one_column_keep_their_shape():
    flat, column = small().fit(X, y), small().fit(X, y[:, None])
    assert column.predict(X).shape == (40, 1)
    assert_array_equal(column.predict(X)[:, 0], flat.predict(X))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [0.0, 3.7, -1e9, 1e150])
@pytest.mark.parametrize(("basis", "tolerance"), [("points", 1e-4), ("multiscale", 0.05)])
def test_a_constant_column_changes_no_prediction(basis, tolerance, value, dtype):
    """Multiscale functions have length-scales in it too, which are one more way to scale them."""
    constant = np.column_stack([X[:, 0], np.full(40, value), X[:, 1]])
    model = small(dtype=dtype, basis=basis).fit(X, y)
    other = small(dtype=dtype, basis=basis).fit(constant, y)
    assert_same_predictions(other, constant, model, X, tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [0.0, 5.0, -1e9, 1e-9, 1e100])
@pytest.mark.parametrize("n", [2, 40])
def test_a_constant_target_is_predicted(n, value, dtype):
    model = small(dtype=dtype).fit(X[:n], np.full(n, value))
    mean, std = model.predict(X, return_std=True)
    assert_allclose(mean, value, rtol=1e-12)
    assert np.isfinite(std).all()
    assert (std > 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 1e9, 1e-9])
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_one_row_predicts_its_own_target(method, scale, dtype):
    model = getattr(small(dtype=dtype), method)(X[:1] * scale, Y[:1] * scale)
    mean, std = model.predict(X[:1] * scale, return_std=True)
    assert_allclose(mean, Y[:1] * scale, rtol=1e-12)
    assert np.isfinite(std).all()
    assert (std > 0).all()


def test_rows_one_at_a_time_teach_as_much_as_together():
    one_by_one = small(n_mean_basis=40, basis_increment=40)
    for row in range(40):
        one_by_one.partial_fit(X[[row]], y[[row]])
    for _ in range(60):
        one_by_one.partial_fit(X, y)
    assert one_by_one.score(X, y) > 0.9


def test_repeated_rows_are_learnt():
    where, value = np.array([[-1.0], [0.0], [2.0]]), np.array([3.0, -1.0, 5.0])
    model = small(max_iter=150).fit(np.tile(where, (20, 1)), np.tile(value, 20))
    mean, std = model.predict(where, return_std=True)
    assert_allclose(mean, value, atol=0.5)
    assert (std < np.std(value)).all()


def test_repeated_rows_that_disagree_are_noise():
    model = small(max_iter=150).fit(np.ones((60, 2)), np.tile([4.0, 6.0], 30))
    mean, std = model.predict(np.ones((1, 2)), return_std=True)
    assert_allclose(mean, 5, atol=0.2)
    assert 0.7 < std[0] < 1.5


def test_far_from_all_rows_the_prior_is_predicted():
    model = small(batch_size=40, max_iter=100).fit(X, y)
    far = [[1e12, 0], [0, -1e12], [1e300, 1e300], [1e6, 1e6]]
    mean, std = model.predict(far, return_std=True)
    assert_allclose(mean, y.mean(), rtol=1e-9)
    assert_allclose(std, std[0], rtol=1e-9)
    assert std[0] > model.predict(X, return_std=True)[1].max()


# --- clear errors --------------------------------------------------------------------------------


def bad_cells(*cells, names=None, kind=np.array, n=40):
    """Return X with some cells replaced, as an array or a frame."""
    table = X[:n].copy()
    for row, column, value in cells:
        table[row, column] = value
    return table if names is None else kind(dict(zip(names, table.T, strict=True)))


def raised(call, kind, match):
    """Run, and return the message of the one exception of this very kind."""
    with pytest.raises(kind, match=match) as info:
        call()
    error = info.value
    other = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    assert other is None or isinstance(other, Warning)
    return str(error)


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
    assert model.partial_fit(WHOLE, Y).predict(WHOLE).shape == (40, 2)


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


def test_refused_targets_leave_the_model_as_it_was():
    model = small(likelihood=BetaLikelihood()).fit(X, 1 / (1 + np.exp(-y)))
    before = model.predict(X, return_std=True)
    raised(lambda: model.partial_fit(X, (y > 0) * 1.0), ValueError, "does not allow")
    assert_array_equal(model.predict(X, return_std=True), before)


def test_refused_rows_leave_a_stream_that_has_hardly_begun_as_it_was():
    """Nothing of them is kept either: later rows are learnt as if they had never come."""
    good = 1 / (1 + np.exp(-y))
    model, twin = (SVGPRegressor(10, likelihood=BetaLikelihood(), random_state=0) for _ in range(2))
    for one in (model, twin):
        one.partial_fit(X[:10], good[:10])
    raised(lambda: model.partial_fit(X[10:20], good[10:20] + 1), ValueError, "does not allow")
    assert model.n_rows_ == 10
    for one in (model, twin):
        one.partial_fit(X[20:], good[20:])
    assert_array_equal(model.predict(X), twin.predict(X))


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_one_impossible_target_in_a_later_minibatch_is_named_and_nothing_is_learnt(method):
    good = 1 / (1 + np.exp(-y))
    model = small(likelihood=BetaLikelihood()).fit(X, good)
    before, bad = model.predict(X), good.copy()
    bad[37] = 1 - 1e-9  # which is 1 in float32
    raised(lambda: getattr(model, method)(X, bad), ValueError, "1 at row 37")
    assert model.n_rows_ == 40
    assert_array_equal(model.predict(X), before)


MODELS = {
    "gradient": lambda: small(),
    "sweeps": lambda: DecoupledGPRegressor(random_state=0),
    "svi": lambda: SVGPRegressor(5, max_iter=3, random_state=0),
    "exact": lambda: ExactGPRegressor(max_iter=3, random_state=0),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_fit_that_fails_leaves_the_model_as_it_was(name):
    model = MODELS[name]().fit(X, y)
    before = model.predict(X)
    wide = np.column_stack([X, X])
    raised(lambda: model.fit(wide, np.full(40, np.nan)), ValueError, "NaN")
    raised(
        lambda: model.set_params(kernel=RBFKernel(ard_num_dims=7)).fit(wide, Y), ValueError, "ard"
    )
    assert model.n_features_in_ == 2
    assert_array_equal(model.predict(X), before)


@pytest.mark.parametrize("name", MODELS)
def test_a_first_fit_that_fails_leaves_no_model(name):
    model = MODELS[name]().set_params(kernel=RBFKernel(ard_num_dims=7))
    raised(lambda: model.fit(X, y), ValueError, "ard")
    with pytest.raises(NotFittedError):
        model.predict(X)


@pytest.mark.parametrize("likelihood", [None, StudentTLikelihood()])
@pytest.mark.parametrize("solver", ["gradient", "sweeps"])
def test_a_caller_may_write_to_his_arrays_between_calls(solver, likelihood):
    options = {"likelihood": likelihood, "solver": solver, "random_state": 0}
    reused, fresh = (DecoupledGPRegressor(20, 8, **options) for _ in range(2))
    X_buffer, y_buffer = np.empty((10, 2)), np.empty(10)
    for start in range(0, 40, 10):
        X_buffer[:], y_buffer[:] = X[start : start + 10], y[start : start + 10]
        reused.partial_fit(X_buffer, y_buffer)
        fresh.partial_fit(X[start : start + 10].copy(), y[start : start + 10].copy())
    assert_array_equal(reused.predict(X), fresh.predict(X))


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_dates_are_no_targets(method):
    dates = np.arange(40).astype("datetime64[D]")
    raised(lambda: getattr(small(), method)(X, dates), (TypeError, ValueError), "date.*number")


# --- Ctrl-C --------------------------------------------------------------------------------------


class Interrupt:
    """A callback that presses Ctrl-C once."""

    def __init__(self, at):
        self.calls, self.at = 0, at

    def __call__(self, model, record):
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 10, 40])
def test_an_interrupted_fit_leaves_the_model_of_the_last_step(n, dtype):
    model = small(dtype=dtype, callbacks=[Interrupt(at=3)])
    with pytest.raises(KeyboardInterrupt):
        model.fit(X[:n], Y[:n])
    whole = small(dtype=dtype, max_iter=3).fit(X[:n], Y[:n])
    assert model.n_iter_ == whole.n_iter_ == 3
    assert_array_equal(model.predict(X, return_std=True), whole.predict(X, return_std=True))

    model.partial_fit(X[-5:], Y[-5:])
    assert model.n_iter_ == 4
    assert model.n_rows_ == whole.n_rows_ + 5
    check_predictions(model, X, Y)


@pytest.fixture
def ctrl_c():
    """Return a function that presses Ctrl-C, also where a test run ignores it."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, usual)


@pytest.mark.parametrize("method", ["grow", "step"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_ctrl_c_within_a_step_leaves_the_model_of_a_whole_step(method, when, monkeypatch, ctrl_c):
    """Wherever it comes, also between adding the last functions and telling the learner."""
    original = getattr(GradientLearner, method)

    def interrupted(learner, *arguments, **options):
        full = learner.posterior.n_mean == 18
        if full and when == "before":
            ctrl_c()
        result = original(learner, *arguments, **options)
        if full and when == "after":
            ctrl_c()
        return result

    monkeypatch.setattr(GradientLearner, method, interrupted)
    model = small(n_mean_basis=18, n_cov_basis=18)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    monkeypatch.undo()
    assert 0 < model.n_iter_ < 8
    whole = small(n_mean_basis=18, n_cov_basis=18, max_iter=model.n_iter_).fit(X, y)
    assert_array_equal(model.predict(X, return_std=True), whole.predict(X, return_std=True))
    assert len(model.history_) == model.n_iter_

    model.partial_fit(X, y)
    assert model.n_mean_basis_ == 18
    assert model.posterior_.mean_coefficients.all()
    check_predictions(model, X, y)


def test_an_interrupted_stream_goes_on():
    model = small(callbacks=[Interrupt(at=2)])
    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(X, y)
    model.partial_fit(X, y)
    check_predictions(model, X, y)
