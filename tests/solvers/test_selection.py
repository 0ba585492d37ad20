"""Which rows become functions."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from decoupledgp.bases import PointBasis
from decoupledgp.kernels import se_ard
from decoupledgp.solvers import selection
from decoupledgp.solvers.selection import CHOICES, choose
from largest import LargestTensor

RNG = np.random.default_rng(0)
KERNEL = se_ard(2).double()
KERNEL.lengthscale = torch.tensor([[0.3, 0.3]], dtype=torch.float64)


def chosen(x, count, how, seed=0):
    x = torch.tensor(x)
    return choose(KERNEL, x / 0.3, x, count, how, np.random.default_rng(seed))


@pytest.mark.parametrize("how", CHOICES)
def test_as_many_different_rows_as_asked_for(how):
    x = RNG.uniform(-1, 1, (500, 2))
    index = chosen(x, 100, how)
    assert len(set(index)) == 100
    assert_array_equal(index, chosen(x, 100, how))
    assert set(index) != set(chosen(x, 100, how, seed=1))
    assert sorted(chosen(x[:50], 80, how)) == list(range(50))


@pytest.mark.parametrize("how", CHOICES[1:])
def test_rows_far_from_the_crowd_are_not_forgotten(how):
    """950 rows in a heap and 50 spread widely: a random tenth has five of those."""
    x = np.concatenate([0.05 * RNG.standard_normal((950, 2)), RNG.uniform(-3, 3, (50, 2))])
    count = [np.sum(chosen(x, 100, how, seed) >= 950) for seed in range(5)]
    random = [np.sum(chosen(x, 100, "random", seed) >= 950) for seed in range(5)]
    assert np.mean(count) > 2 * np.mean(random)


@pytest.mark.parametrize("how", CHOICES)
def test_repeated_rows(how):
    x = np.repeat(RNG.uniform(-1, 1, (5, 2)), 40, axis=0)
    assert len(set(chosen(x, 20, how))) == 20


def test_greedy_is_pivoted_cholesky():
    x = torch.tensor(RNG.uniform(-1, 1, (40, 2)))
    K = KERNEL(x).to_dense().detach()
    index = list(selection._greedy(PointBasis(x).at(KERNEL), x, 8))
    for j in range(1, 8):
        first = index[:j]
        left = K.diagonal() - (
            K[:, first] @ torch.linalg.inv(K[first][:, first]) * K[:, first]
        ).sum(1)
        assert left[index[j]] > left.max() - 1e-9


def test_work_has_a_limit(monkeypatch):
    x = RNG.uniform(-1, 1, (500, 2))
    monkeypatch.setattr(selection, "MOST_WORK", 10)
    assert_array_equal(chosen(x, 50, "greedy"), chosen(x, 50, "random"))


@pytest.mark.parametrize(("how", "held"), [("greedy", 400 * 400), ("leverage", 101 * 1600)])
def test_no_choice_holds_the_gram_matrix_of_its_pool(how, held, monkeypatch):
    """Nor, for leverage, that of its pool with the landmarks."""
    monkeypatch.setattr(selection, "ROWS_AT_ONCE", 100)
    with LargestTensor() as seen:
        chosen(RNG.uniform(-1, 1, (2000, 2)), 100 if how == "greedy" else 400, how)
    assert seen.largest < held * 8 / 2


@pytest.mark.parametrize("how", CHOICES)
def test_no_rows_may_be_asked_for(how):
    assert len(chosen(RNG.uniform(-1, 1, (50, 2)), 0, how)) == 0
