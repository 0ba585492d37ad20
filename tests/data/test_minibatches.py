"""Every row once per pass, in minibatches of one size; rows that came together keep their order."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoupledgp.data import consecutive_batches, shuffled_batches

SIZES = {"n_rows": st.integers(1, 60), "batch_size": st.integers(1, 80)}


def stream(n_rows, batch_size, passes=4, seed=0):
    """Return at least so many passes over the rows as a list of minibatches."""
    batches = shuffled_batches(n_rows, batch_size, np.random.default_rng(seed))
    count = -(-passes * n_rows // min(batch_size, n_rows))
    return list(islice(batches, count))


@given(**SIZES)
def test_shuffled_batches_are_of_one_size(n_rows, batch_size):
    assert {len(batch) for batch in stream(n_rows, batch_size)} == {min(batch_size, n_rows)}


@given(**SIZES)
def test_every_row_comes_once_per_pass(n_rows, batch_size):
    rows = np.concatenate(stream(n_rows, batch_size))
    passes = rows[: len(rows) // n_rows * n_rows].reshape(-1, n_rows)
    assert len(passes) >= 4
    np.testing.assert_array_equal(np.sort(passes, axis=1), [np.arange(n_rows)] * len(passes))


@given(**SIZES)
def test_no_batch_holds_a_row_twice(n_rows, batch_size):
    """Also where one pass ends and the next begins: such a row would count twice in the bound."""
    for batch in stream(n_rows, batch_size):
        assert len(set(batch.tolist())) == len(batch)


def test_passes_come_in_different_orders_that_the_generator_fixes():
    first, again = stream(30, 30, seed=1), stream(30, 30, seed=1)
    np.testing.assert_array_equal(first, again)
    assert len({tuple(batch) for batch in [*first, *stream(30, 30, seed=2)]}) == 8


def test_a_batch_stays_as_it_was_given():
    """Batches are cut from a common array, which later ones must not overwrite."""
    batches = shuffled_batches(10, 4, np.random.default_rng(0))
    first = next(batches)
    kept = first.copy()
    for _ in range(20):
        next(batches)
    np.testing.assert_array_equal(first, kept)


@given(n_rows=st.integers(0, 3000), batch_size=st.integers(1, 400))
def test_consecutive_batches_cover_the_rows_in_order_in_nearly_equal_parts(n_rows, batch_size):
    parts = consecutive_batches(n_rows, batch_size)
    rows = [row for part in parts for row in range(n_rows)[part]]
    assert rows == list(range(n_rows))
    sizes = [part.stop - part.start for part in parts]
    assert len(parts) == -(-n_rows // batch_size)
    if parts:
        assert max(sizes) <= batch_size
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("n_rows", "expected"), [(1, [1]), (4, [4]), (5, [2, 3]), (8, [4, 4])])
def test_consecutive_batches_leave_no_small_remainder(n_rows, expected):
    sizes = [part.stop - part.start for part in consecutive_batches(n_rows, 4)]
    assert sorted(sizes) == expected
