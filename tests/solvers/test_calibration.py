"""Calibration of variances on held-out residuals."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from decoupledgp.solvers.calibration import Calibration, HeldOut, calibrate


def plain(residuals, latent):
    return HeldOut(residuals, latent, np.ones(len(latent)), np.zeros_like(latent))


def held_out(k=20000, factor=0.2, noise=0.03, seed=0):
    rng = np.random.default_rng(seed)
    latent = rng.uniform(0.01, 1, (k, 1))
    return rng.standard_normal((k, 1)) * np.sqrt(factor * latent + noise), latent


def test_what_is_known_of_a_rows_noise_is_left_to_it():
    """Rows with weights from 1/4 to 4 and known noise of up to five times the common one."""
    rng = np.random.default_rng(0)
    latent, known = rng.uniform(0.01, 1, (20000, 1)), rng.uniform(0, 0.15, (20000, 1))
    weights = rng.uniform(0.25, 4, 20000)
    variance = 0.2 * latent + (0.03 + known) / weights[:, None]
    residuals = rng.standard_normal((20000, 1)) * np.sqrt(variance)
    found = calibrate(HeldOut(residuals, latent, weights, known))
    assert_allclose(found.latent, 0.2, rtol=0.2)
    assert_allclose(found.noise, 0.03, rtol=0.25)
    assert_allclose(found.quantile(0.95), 1.96, rtol=0.03)
    assert calibrate(plain(residuals, latent)).noise > 0.05


def test_held_out_rows_change_units_and_keep_the_latest():
    residuals, latent = held_out(500)
    rows = HeldOut(residuals, latent, np.ones(500), np.full((500, 1), 0.01))
    smaller = rows.in_units(np.array([10.0]))
    assert_allclose(calibrate(smaller).noise, 100 * calibrate(rows).noise, rtol=1e-6)
    assert_allclose(calibrate(smaller).latent, calibrate(rows).latent)
    both = rows.followed_by(smaller, 510)
    assert_allclose(both.residuals, np.vstack([rows.residuals[-10:], smaller.residuals]))
    assert len(both) == 510


def test_factor_and_noise_are_found():
    found = calibrate(plain(*held_out()))
    assert_allclose(found.latent, 0.2, rtol=0.15)
    assert_allclose(found.noise, 0.03, rtol=0.15)


def test_no_other_pair_is_more_likely():
    residuals, latent = held_out(500, seed=1)
    found = calibrate(plain(residuals, latent))

    def loss(factor, noise):
        variance = factor * latent + noise
        return np.mean(np.log(variance) + residuals**2 / variance)

    best = loss(found.latent[0], found.noise[0])
    for factor in np.geomspace(1e-3, 5, 30):
        for noise in np.geomspace(1e-4, 1, 30):
            assert best <= loss(factor, noise) + 2e-3


def test_intervals_of_heavy_tails_are_widened_to_hold_what_they_say():
    """Laplace errors: the most likely variance has 95% intervals that hold 93.75% of them."""
    rng = np.random.default_rng(0)
    residuals, latent = rng.laplace(size=(20000, 1)), np.zeros((20000, 1))
    found = calibrate(plain(residuals, latent))
    assert_allclose(found.noise, 2 * (np.log(20) / np.sqrt(2) / 1.96) ** 2, rtol=0.05)
    assert abs(np.mean(np.abs(residuals) < 1.96 * np.sqrt(found.noise)) - 0.95) < 0.002
    light = calibrate(plain(rng.uniform(-1, 1, (20000, 1)), latent))
    assert_allclose(light.noise, 1 / 3, rtol=0.03)


def test_outputs_are_calibrated_apart():
    first, second = held_out(factor=0.05), held_out(factor=0.8, noise=1e-3, seed=2)
    both = calibrate(plain(*(np.hstack(pair) for pair in zip(first, second, strict=True))))
    for p, one in enumerate((calibrate(plain(*first)), calibrate(plain(*second)))):
        assert_allclose(both.latent[p], one.latent[0])
        assert_allclose(both.noise[p], one.noise[0])


def test_residuals_of_zero_have_a_positive_variance():
    found = calibrate(plain(np.zeros((100, 1)), np.zeros((100, 1))))
    assert 0 < found.noise[0] < 1e-6


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.95])
def test_conformal_quantiles_cover_heavy_tails(coverage):
    rng = np.random.default_rng(0)
    latent = np.full((2000, 1), 0.1)
    found = calibrate(plain(rng.standard_t(2, (2000, 1)), latent))
    new = np.abs(rng.standard_t(2, 20000)) / np.sqrt(found.latent[0] * 0.1 + found.noise[0])
    assert abs((new <= found.quantile(coverage)[0]).mean() - coverage) < 0.03


def test_too_few_scores_cover_by_an_infinite_interval():
    few = Calibration(np.ones(1), np.ones(1), np.sort(np.random.default_rng(0).random((5, 1)), 0))
    assert np.isinf(few.quantile(0.95)).all()
    assert np.isfinite(few.quantile(0.5)).all()
