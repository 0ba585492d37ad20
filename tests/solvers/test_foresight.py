"""Log densities of rows that a prior was not told of, against dense Gaussians row by row."""

import numpy as np
import pytest
import torch

from decoupledgp.kernels import scaled_kernel, se_ard
from decoupledgp.likelihoods import gaussian_likelihood
from decoupledgp.solvers.foresight import held_back_densities, is_ahead, left_out_densities
from decoupledgp.solvers.neighbourhoods import Prior, surroundings
from decoupledgp.solvers.rows import Rows
from dense import exact_posterior, se_gram

RNG = np.random.default_rng(0)
N, P = 24, 2
SCALES, RHO2, NOISE = np.array([0.7, 1.3]), np.array([1.5, 0.4]), np.array([0.1, 0.3])
X, Y = RNG.uniform(-2, 2, (N, 2)), RNG.standard_normal((N, P))
WEIGHTS, KNOWN = RNG.uniform(0.5, 2, N), RNG.uniform(0, 0.2, (N, P))
ROWS = Rows(*(torch.tensor(part) for part in (X, Y, WEIGHTS, KNOWN)))


def prior():
    kernel, likelihood = (
        scaled_kernel(se_ard(2).double(), P).double(),
        gaussian_likelihood(P).double(),
    )
    kernel.base_kernel.lengthscale = torch.tensor(SCALES)[None]
    kernel.outputscale = torch.tensor(RHO2)
    likelihood.noise = torch.tensor(NOISE)[:, None]
    return Prior(kernel, likelihood)


def dense_density(learnt, held):
    """Log density of a row's targets given others', a mean over outputs."""
    total = 0.0
    for p in range(P):
        noise = (NOISE[p] + KNOWN[:, p]) / WEIGHTS
        K, across = (
            RHO2[p] * se_gram(X[a], X[b], SCALES) for a, b in ((learnt, learnt), (held, learnt))
        )
        mean, covariance = exact_posterior(
            K, across, np.array([[RHO2[p]]]), noise[learnt], Y[learnt, p]
        )
        variance = float(np.squeeze(covariance)) + noise[held[0]]
        residual = Y[held[0], p] - float(np.squeeze(mean))
        total += -0.5 * (np.log(2 * np.pi * variance) + residual**2 / variance) / P
    return total


def test_each_row_of_one_group_is_foretold_by_all_others():
    got = left_out_densities(prior(), ROWS, [np.arange(N)])
    expected = [dense_density(np.delete(np.arange(N), i), [i]) for i in range(N)]
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_of_several_groups_the_rows_in_the_middle_count():
    groups = [np.arange(12), np.arange(12, 24)]
    got = left_out_densities(prior(), ROWS, groups)
    expected = [
        np.mean([dense_density(np.setdiff1d(group, i), [i]) for i in group[:3]]) for group in groups
    ]
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_rows_held_back_are_foretold_by_those_learnt():
    learnt, held = np.arange(16), np.arange(16, N)
    got = held_back_densities(prior(), ROWS.take(learnt), ROWS.take(held))
    expected = [dense_density(learnt, [i]) for i in held]
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_ahead_is_by_so_much_and_by_more_than_chance():
    other = RNG.standard_normal(1000)
    assert is_ahead(other + 0.1, other, by=0.05)
    assert not is_ahead(other + 0.1, other, by=0.2)
    assert not is_ahead(other, other + 0.1, by=0.05)
    chance = RNG.standard_normal(10)
    chance += 0.1 - chance.mean()
    assert not is_ahead(chance, np.zeros(10), by=0.05)
    broken = np.full(10, np.nan)
    assert not is_ahead(broken, np.zeros(10), by=0.05)
    assert is_ahead(np.zeros(10), broken, by=0.05)
    assert not is_ahead(broken, broken, by=0.05)


@pytest.mark.parametrize("far", [0.0, 1e4])
def test_surroundings_are_the_nearest_rows_nearest_first(far):
    places = far + torch.rand(3000, 3, generator=torch.Generator().manual_seed(0)).double()
    groups = surroundings(places, np.random.default_rng(0), size=20, count=11)
    assert len(groups) == 11
    for group in groups:
        distance = (places - places[group[0]]).square().sum(1)
        assert set(group) == set(torch.topk(distance, 20, largest=False).indices.tolist())
        assert (distance[torch.from_numpy(group)].diff() >= -1e-6).all()
    (few,) = surroundings(places[:50], np.random.default_rng(0), count=3)
    assert list(few) == list(range(50))


def test_surroundings_of_one_value_are_avoided_where_there_are_others():
    places = torch.rand(3000, 2, generator=torch.Generator().manual_seed(0)).double()
    y = places[:, :1].clamp_min(0.3)

    def most(y, given):
        groups = surroundings(places, np.random.default_rng(0), size=50, count=20, y=given)
        return max(float((y[torch.from_numpy(g)] == 0.3).double().mean()) for g in groups)

    assert most(y, None) == 1
    assert most(y, y) <= 0.65
    assert most(torch.full_like(y, 0.3), torch.full_like(y, 0.3)) == 1
