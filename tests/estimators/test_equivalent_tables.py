"""Tables that say the same give the same model: other units, containers, a constant column, repeated rows."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from gpytorch.likelihoods.likelihood import _OneDimensionalLikelihood
from numpy.testing import assert_allclose, assert_array_equal

from small_tables import DTYPES, X, Y, small, y


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
    new = np.random.default_rng(1).standard_normal((10, 2))
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


WHOLE = np.random.default_rng(0).integers(0, 9, (40, 3))
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
