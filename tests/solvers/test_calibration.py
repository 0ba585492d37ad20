"""Calibration of variances on held-out residuals."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from decoupledgp.solvers.calibration import Calibration, calibrate


def held_out(k=20000, factor=0.2, noise=0.03, seed=0):
    rng = np.random.default_rng(seed)
    latent = rng.uniform(0.01, 1, (k, 1))
    return rng.standard_normal((k, 1)) * np.sqrt(factor * latent + noise), latent


def test_factor_and_noise_are_found():
    found = calibrate(*held_out())
    assert_allclose(found.latent, 0.2, rtol=0.15)
    assert_allclose(found.noise, 0.03, rtol=0.15)


def test_no_other_pair_is_more_likely():
    residuals, latent = held_out(500, seed=1)
    found = calibrate(residuals, latent)

    def loss(factor, noise):
        variance = factor * latent + noise
        return np.mean(np.log(variance) + residuals**2 / variance)

    best = loss(found.latent[0], found.noise[0])
    for factor in np.geomspace(1e-3, 5, 30):
        for noise in np.geomspace(1e-4, 1, 30):
            assert best <= loss(factor, noise) + 2e-3


def test_outputs_are_calibrated_apart():
    first, second = held_out(factor=0.05), held_out(factor=0.8, noise=1e-3, seed=2)
    both = calibrate(np.hstack([first[0], second[0]]), np.hstack([first[1], second[1]]))
    for p, one in enumerate((calibrate(*first), calibrate(*second))):
        assert_allclose(both.latent[p], one.latent[0])
        assert_allclose(both.noise[p], one.noise[0])


def test_residuals_of_zero_have_a_positive_variance():
    found = calibrate(np.zeros((100, 1)), np.zeros((100, 1)))
    assert 0 < found.variance(np.zeros((1, 1)))[0, 0] < 1e-6


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.95])
def test_conformal_quantiles_cover_heavy_tails(coverage):
    rng = np.random.default_rng(0)
    latent = np.full((2000, 1), 0.1)
    found = calibrate(rng.standard_t(2, (2000, 1)), latent)
    new = np.abs(rng.standard_t(2, 20000)) / np.sqrt(found.variance(latent[:1])[0, 0])
    assert abs((new <= found.quantile(coverage)[0]).mean() - coverage) < 0.03


def test_too_few_scores_cover_by_an_infinite_interval():
    few = Calibration(np.ones(1), np.ones(1), np.sort(np.random.default_rng(0).random((5, 1)), 0))
    assert np.isinf(few.quantile(0.95)).all()
    assert np.isfinite(few.quantile(0.5)).all()
