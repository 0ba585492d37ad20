"""Errors on rows that a prior was not told of, against dense Gaussians row by row."""

import numpy as np
import pytest
import torch

from decoupledgp.kernels import scaled_kernel, se_ard, smoothness
from decoupledgp.likelihoods import gaussian_likelihood
from decoupledgp.solvers import learn_hyperparameters
from decoupledgp.solvers.foresight import is_ahead, left_out_errors
from decoupledgp.solvers.neighbourhoods import Prior, surroundings
from decoupledgp.solvers.rows import Rows
from dense import exact_posterior, se_gram

RNG = np.random.default_rng(0)
N, P = 24, 2
SCALES, RHO2, NOISE = np.array([0.7, 1.3]), np.array([1.5, 0.4]), np.array([0.1, 0.3])
X, Y = RNG.uniform(-2, 2, (N, 2)), RNG.standard_normal((N, P))
WEIGHTS, KNOWN = RNG.uniform(0.5, 2, N), RNG.uniform(0, 0.2, (N, P))


def table(X=X):
    return Rows(*(torch.tensor(part) for part in (X, Y, WEIGHTS, KNOWN)))


def prior(noise_is_learnt=True):
    kernel = scaled_kernel(se_ard(2).double(), P).double()
    likelihood = gaussian_likelihood(P).double()
    kernel.base_kernel.lengthscale = torch.tensor(SCALES)[None]
    kernel.outputscale = torch.tensor(RHO2)
    likelihood.noise = torch.tensor(NOISE)[:, None]
    return Prior(kernel, likelihood if noise_is_learnt else None)


def dense_errors(others, i, noise=NOISE):
    """Squared errors on the targets of row i given others', output by output."""
    errors = []
    for p in range(P):
        variance = (noise[p] + KNOWN[others, p]) / WEIGHTS[others]
        K, across = (RHO2[p] * se_gram(X[a], X[others], SCALES) for a in (others, [i]))
        mean, _ = exact_posterior(K, across, np.array([[RHO2[p]]]), variance, Y[others, p])
        errors.append((Y[i, p] - mean.item()) ** 2)
    return errors


@pytest.mark.parametrize("noise_is_learnt", [True, False])
def test_each_row_of_one_group_is_foretold_by_all_others(noise_is_learnt):
    got = left_out_errors(prior(noise_is_learnt), table(), [np.arange(N)])
    noise = NOISE if noise_is_learnt else np.zeros(P)
    expected = [dense_errors(np.delete(np.arange(N), i), i, noise) for i in range(N)]
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_of_several_groups_the_rows_in_the_middle_count():
    groups = [np.arange(12), np.arange(12, 24)]
    for some in (groups, groups[:1]):  # one group that is not all rows is one among several
        got = left_out_errors(prior(), table(), some)
        expected = [
            np.mean([dense_errors(np.setdiff1d(group, i), i) for i in group[:3]], axis=0)
            for group in some
        ]
        np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_rows_with_a_twin_do_not_count():
    twice = X.copy()
    twice[5] = twice[1]
    got = left_out_errors(prior(), table(twice), [np.arange(N)])
    assert list(np.flatnonzero(np.isnan(got).all(1))) == [1, 5]
    assert np.isfinite(np.delete(got, [1, 5], axis=0)).all()


def test_ahead_is_by_so_much_and_by_more_than_chance():
    other = RNG.uniform(0.5, 1.5, (1000, 2)) * [1.0, 1e-6]
    assert is_ahead(0.9 * other, other, by=0.05)
    assert not is_ahead(0.9 * other, other, by=0.2)
    assert not is_ahead(other, 0.9 * other, by=0.05)
    assert is_ahead(other * [1.1, 0.7], other, by=0.05)  # shares count, not units
    chance = 1 + RNG.standard_normal((10, 1))
    assert not is_ahead(chance - chance.mean() + 0.9, np.ones((10, 1)), by=0.05)
    missing = np.where(np.arange(1000)[:, None] < 10, np.nan, other)
    assert is_ahead(0.9 * missing, missing, by=0.05)
    broken = np.full((10, 1), np.inf)
    assert not is_ahead(broken, np.ones((10, 1)), by=0.05)
    assert is_ahead(np.ones((10, 1)), broken, by=0.05)
    assert not is_ahead(broken * np.nan, broken * np.nan, by=0.05)
    assert not is_ahead(np.zeros((10, 1)), np.zeros((10, 1)), by=0.05)


@pytest.mark.parametrize("far", [0.0, 1e4])
def test_surroundings_are_the_nearest_rows_nearest_first(far):
    places = far + torch.rand(3000, 3, generator=torch.Generator().manual_seed(0)).double()
    groups = surroundings(places, np.random.default_rng(0), size=20, count=11)
    assert len({group[0] for group in groups}) == 11
    for group in groups:
        distance = (places - places[group[0]]).square().sum(1)
        assert set(group) == set(torch.topk(distance, 20, largest=False).indices.tolist())
        assert (distance[torch.from_numpy(group)].diff() >= -1e-6).all()
    (few,) = surroundings(places[:50], np.random.default_rng(0), count=3)
    assert list(few) == list(range(50))


@pytest.mark.parametrize("n", [600, 3000])
def test_noise_with_heavy_tails_is_not_taken_for_roughness(n):
    """Outliers that a rough function could pass through."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (n, 2))
    y = np.sin(2 * x[:, :1]) * np.cos(x[:, 1:]) + 0.3 * rng.standard_t(2, (n, 1))
    kernel = scaled_kernel(se_ard(2).double(), 1).double()
    likelihood = gaussian_likelihood(1).double()
    rows = Rows.plain(torch.tensor(x), torch.tensor(y / y.std()))
    options = {"rng": np.random.default_rng(0), "choose_smoothness": True}
    learn_hyperparameters(kernel, likelihood, rows, **options)
    assert smoothness(kernel.base_kernel) > 1
