"""Columns of any scale come out with mean 0 and variance 1, or as finite numbers at the least."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal

from decoupledgp.data import Standardizer

RNG = np.random.default_rng(0)
NORMAL = RNG.standard_normal((200, 3))
LARGEST, SMALLEST = np.finfo(np.float64).max, np.finfo(np.float64).smallest_subnormal


def any_table(dtype, columns):
    """Tables of any finite numbers, the largest and the subnormal included."""
    bits = 8 * np.dtype(dtype).itemsize
    values = st.floats(allow_nan=False, allow_infinity=False, width=bits)
    return st.integers(1, 6).flatmap(lambda n: arrays(dtype, (n, columns), elements=values))


@pytest.mark.parametrize("factor", [1, 1e9, 1e-9, -1e150, 1e-150, 1e300, 1e-300])
@pytest.mark.parametrize("shift", [0, 1000])
def test_columns_get_mean_zero_and_variance_one(factor, shift):
    X = factor * (NORMAL + shift)
    Z = Standardizer(X).transform(X)
    assert_allclose(Z.mean(0), 0, atol=1e-10)
    assert_allclose(Z.std(0), 1, rtol=1e-10)
    expected = np.sign(factor) * (NORMAL - NORMAL.mean(0)) / NORMAL.std(0)
    assert_allclose(Z, expected, atol=1e-10)


@pytest.mark.parametrize("factor", [1, 1e9, 1e-9, 1e150, 1e-150])
def test_inverse_undoes_transform(factor):
    X = factor * np.column_stack([NORMAL, np.full(len(NORMAL), 7.0)])
    scaler = Standardizer(X)
    assert_allclose(scaler.inverse(scaler.transform(X)), X, rtol=1e-12, atol=1e-12 * factor)


def test_columns_do_not_depend_on_each_other():
    together = Standardizer(NORMAL * [1, 1e9, 1e-9]).transform(NORMAL * [1, 1e9, 1e-9])
    assert_allclose(together, Standardizer(NORMAL).transform(NORMAL), rtol=1e-12)


def test_a_large_offset_keeps_its_small_variation():
    X = 1e9 + 1e-3 * NORMAL
    scaler = Standardizer(X)
    assert scaler.varies.all()
    assert_allclose(scaler.transform(X).std(0), 1, rtol=1e-3)
    assert_allclose(scaler.transform(X).mean(0), 0, atol=1e-3)


def test_single_precision_tables_are_measured_in_double():
    """A sum of float32 numbers drifts away from an offset that is large against the variation."""
    X = (1000 + RNG.standard_normal((20_000, 2))).astype(np.float32)
    single, double = Standardizer(X), Standardizer(X.astype(np.float64))
    assert_array_equal(single.centre, double.centre)
    assert_array_equal(single.scale, double.scale)


@pytest.mark.parametrize("value", [0.0, -3.0, 0.1, 1e9, 1e-9, 1e308, 5e-324])
@pytest.mark.parametrize("n", [1, 7])
def test_a_constant_column_is_only_centred(value, n):
    X = np.full((n, 1), value)
    scaler = Standardizer(X)
    assert scaler.centre[0] == value
    assert scaler.scale[0] == 1
    assert not scaler.varies[0]
    assert_array_equal(scaler.transform(X), np.zeros((n, 1)))
    assert_array_equal(scaler.inverse(np.zeros((n, 1))), X)


def test_rounding_errors_are_no_variation():
    X = np.array([[0.3], [0.1 + 0.2], [0.3], [0.4 - 0.1]])
    assert X.min() < X.max()
    scaler = Standardizer(1e9 * X)
    assert not scaler.varies[0]
    scaler.update(1e9 * X[::-1])
    assert not scaler.varies[0]
    assert np.abs(scaler.transform(1e9 * X)).max() < 1e-6


def test_a_column_that_varies_only_later_is_scaled_by_its_first_variation():
    constant = np.column_stack([np.full(5, 4.0), np.arange(5.0), np.full(5, -2.0)])
    scaler = Standardizer(constant)
    centre, scale = scaler.centre.copy(), scaler.scale.copy()

    scaler.update(constant)
    assert_array_equal(scaler.varies, [False, True, False])

    scaler.update(np.array([[4.0, 1e6, -2.0], [4.0 - 1e-5, 1e6, -2.0], [4.0 + 5e-6, 1e6, -2.0]]))
    assert_array_equal(scaler.varies, [True, True, False])
    assert_array_equal(scaler.centre, centre)
    assert_allclose(scaler.scale, [1e-5, scale[1], 1], rtol=1e-9)
    assert_array_equal(scaler.transform(constant)[:, [0, 2]], np.zeros((5, 2)))

    fixed = scaler.scale.copy()
    scaler.update(np.array([[1e9, 1e9, -2.0]]))
    assert_array_equal(scaler.scale, fixed)


def test_update_does_nothing_once_all_columns_vary():
    scaler = Standardizer(NORMAL)
    before = scaler.transform(NORMAL)
    scaler.update(1e6 * NORMAL)
    assert_array_equal(scaler.transform(NORMAL), before)


def test_far_rows_keep_their_side_and_a_square_in_single_precision():
    far = Standardizer(NORMAL).transform(np.array([[1e300, -1e300, 1e12]]))
    assert np.isfinite(np.float32(far) ** 2).all()
    assert_array_equal(np.sign(far), [[1, -1, 1]])
    assert np.abs(far).min() >= 100


def check_finite(first, later):
    """Nothing overflows, divides by zero or warns, for the first rows or for later ones."""
    scaler = Standardizer(first)
    for rows in (first, later):
        scaler.update(rows)
        assert np.isfinite(scaler.centre).all()
        assert np.isfinite(scaler.scale).all()
        assert (scaler.scale > 0).all()
        for table in (first, later):
            assert np.isfinite(scaler.transform(table)).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@given(data=st.data())
@settings(deadline=None)
def test_any_finite_tables_give_finite_columns(dtype, data):
    columns = data.draw(st.integers(1, 3))
    check_finite(data.draw(any_table(dtype, columns)), data.draw(any_table(np.float64, columns)))


@pytest.mark.parametrize(
    ("first", "later"),
    [
        ([0.0, SMALLEST], [0.0, 1.0]),
        ([-SMALLEST, SMALLEST], [-LARGEST, LARGEST]),
        ([0.0], [SMALLEST]),
        ([-LARGEST, LARGEST], [0.0]),
        ([LARGEST, LARGEST], [-LARGEST]),
        ([0.0, LARGEST], [-LARGEST]),
        ([1e-300, 1.0], [LARGEST]),
    ],
)
def test_the_ends_of_the_number_line_give_finite_columns(first, later):
    check_finite(np.array(first)[:, None], np.array(later)[:, None])


@given(any_table(np.float64, 2))
def test_the_centre_lies_among_the_rows(X):
    centre, low, high = (0.5 * t for t in (Standardizer(X).centre, X.min(0), X.max(0)))
    slack = 1e-15 * np.maximum(np.abs(low), np.abs(high))
    assert (centre >= low - slack).all()
    assert (centre <= high + slack).all()
