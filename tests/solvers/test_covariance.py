"""The closed-form covariance against the collapsed bound and dense Gaussians."""

import numpy as np
import torch
from numpy.testing import assert_allclose

from decoupledgp.bases import PointBasis
from decoupledgp.collapsed import Collapsed
from decoupledgp.kernels import se_ard
from decoupledgp.solvers import covariance
from decoupledgp.solvers.covariance import solve_covariance

RHO2 = torch.tensor([1.5, 0.7], dtype=torch.float64)
NOISE = torch.tensor([0.1, 0.4], dtype=torch.float64)


def rows(n=60, m=6, seed=0):
    rng = np.random.default_rng(seed)
    x = torch.tensor(rng.uniform(-2, 2, (n, 2)))
    return x, torch.tensor(rng.standard_normal((n, 2))), PointBasis(x[:m]).at(se_ard(2).double())


def solve(beta, x, weights=None):
    weights = torch.ones(len(x), dtype=x.dtype) if weights is None else weights
    noise = NOISE / RHO2 / weights[:, None]
    return solve_covariance(beta, x, noise, torch.ones(len(x), dtype=x.dtype))


def test_noise_of_every_row_and_output_against_dense_matrices():
    x, _, beta = rows(30)
    noise = torch.tensor(np.random.default_rng(1).uniform(0.05, 2, (30, 2)))
    found = solve_covariance(beta, x, noise, torch.ones(30, dtype=x.dtype))
    K, cross = (part.detach().numpy() for part in (beta.gram(), beta.evaluate(x)))
    for p in range(2):
        Ki = np.linalg.inv(K)
        B = Ki @ (cross.T / noise[:, p].numpy()) @ cross @ Ki
        L = found.L[p].numpy()
        assert_allclose(L @ L.T, B, rtol=1e-6, atol=1e-8 * np.abs(B).max())
        # KL(N(0, S) || N(0, K)) with S = (K⁻¹ + K⁻¹ΦᵀΛ⁻¹ΦK⁻¹)⁻¹ on the functions' values
        S = np.linalg.inv(Ki + B)
        kl = 0.5 * (np.trace(Ki @ S) - len(K) + np.log(np.linalg.det(K) / np.linalg.det(S)))
        assert_allclose(found.kl[p], kl, rtol=1e-5)


def test_the_factor_is_titsias():
    x, y, beta = rows()
    expected = Collapsed(beta, RHO2, NOISE, x, y, torch.tensor(float(len(x)))).coefficients().L
    L = solve(beta, x).L
    assert_allclose(L @ L.mT, (expected @ expected.mT).detach(), rtol=1e-8)


def test_with_the_optimal_mean_the_bound_is_the_collapsed_one():
    x, y, beta = rows()
    collapsed = Collapsed(beta, RHO2, NOISE, x, y, torch.tensor(float(len(x))))
    a, mean = collapsed.coefficients().a, collapsed.mean()
    norm = (a * (beta.gram() @ a)).sum(0)
    fit = len(x) * torch.log(2 * torch.pi * NOISE) + (y - mean).square().sum(0) / NOISE
    total = (solve(beta, x).bound - 0.5 * (fit + norm)).sum()
    assert_allclose(total.detach(), collapsed.bound().detach(), rtol=1e-7)


def test_a_weight_is_a_repeated_row(monkeypatch):
    x, _, beta = rows(20)
    weights = torch.arange(20, dtype=torch.float64) % 3 + 1
    repeated = x.repeat_interleave(weights.long(), 0)
    weighted = solve(beta, x, weights)
    monkeypatch.setattr(covariance, "ROWS_AT_ONCE", 7)
    plain = solve(beta, repeated)
    assert_allclose(weighted.L @ weighted.L.mT, plain.L @ plain.L.mT, rtol=1e-8)
    assert_allclose(weighted.bound, plain.bound, rtol=1e-9)


def test_no_functions_leave_the_prior():
    x, _, _ = rows()
    found = solve(PointBasis(x[:0]).at(se_ard(2).double()), x)
    assert found.L.shape == (2, 0, 0)
    assert_allclose(found.bound, -0.5 * len(x) * RHO2 / NOISE)
