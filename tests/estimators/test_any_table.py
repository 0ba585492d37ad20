"""Any finite table gives a finite model, never a NaN or a failed Cholesky."""

from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from gpytorch.kernels import MaternKernel
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.utils._param_validation import InvalidParameterError

from small_tables import DTYPES, X, check_predictions, small, y


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
