"""Where the decoupled posterior must meet well-known models, and what no parameters may break."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import dense
from decoupledgp.bases import MultiscaleBasis, PointBasis
from decoupledgp.bound import elbo
from decoupledgp.posteriors import DecoupledPosterior, kl_divergence
from models import KINDS, make_case


def at_optimum(kind="points", dtype=torch.float64):
    """α = β = X with the (a, B) that make q the exact posterior: a = ρ(K + σ²)⁻¹y, B = ρ²/σ² I."""
    case = make_case(kind, n=10, dtype=dtype)
    case.posterior.mean_basis = PointBasis(case.x)
    case.posterior.cov_basis = PointBasis(case.x)
    rho2, noise = case.rho2[0], case.noise[0]
    K, y = rho2 * case.gram(case.x), case.y[:, 0].double().numpy()
    a = np.sqrt(rho2) * np.linalg.solve(K + noise * np.eye(10), y)
    L = np.sqrt(rho2 / noise) * np.eye(10)
    case.posterior.mean_coefficients = torch.nn.Parameter(torch.tensor(a, dtype=dtype)[:, None])
    case.posterior.cov_factor = torch.nn.Parameter(torch.tensor(L, dtype=dtype)[None])
    return case, K, y


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-8), (torch.float32, 2e-4)])
@pytest.mark.parametrize("kind", ["points", "matern"])
def test_basis_at_the_data_gives_the_exact_gp(kind, dtype, tolerance):
    """float32: predictions to 2e-4."""
    case, K, y = at_optimum(kind, dtype)
    x_new = torch.randn(7, 2, generator=torch.Generator().manual_seed(5), dtype=dtype)
    G = case.rho2[0] * case.gram(case.x, x_new)
    mean, cov = dense.exact_posterior(K, G[10:, :10], G[10:, 10:], case.noise[0], y)
    q = case.posterior.measure()
    assert_allclose(q.mean(x_new)[:, 0].detach(), mean, atol=tolerance)
    assert_allclose(q.covariance(x_new)[0].detach(), cov, atol=tolerance)
    bound = elbo(q, case.likelihood, case.x, case.y).item()
    assert_allclose(bound, dense.log_evidence(K, case.noise[0], y), rtol=tolerance)


def test_exact_gp_is_a_stationary_point_of_the_bound():
    case, _, _ = at_optimum()
    elbo(case.posterior.measure(), case.likelihood, case.x, case.y).backward()
    assert case.posterior.mean_coefficients.grad.abs().max() < 1e-8
    assert case.posterior.cov_factor.grad.tril().abs().max() < 1e-8


def test_without_covariance_functions_the_optimal_mean_is_kernel_ridge_regression():
    case = make_case("points", n=10, m_beta=0)
    case.posterior.mean_basis = PointBasis(case.x)
    rho, noise = np.sqrt(case.rho2[0]), case.noise[0]
    K, y = case.gram(case.x), case.y[:, 0].numpy()
    ridge = np.linalg.solve(K + noise / rho**2 * np.eye(10), y) / rho
    case.posterior.mean_coefficients = torch.nn.Parameter(torch.tensor(ridge)[:, None])
    q = case.posterior.measure()
    elbo(q, case.likelihood, case.x, case.y).backward()
    assert case.posterior.mean_coefficients.grad.abs().max() < 1e-8
    prediction = K @ np.linalg.solve(K + noise / rho**2 * np.eye(10), y)
    assert_allclose(q.mean(case.x)[:, 0].detach(), prediction, atol=1e-9)


@pytest.mark.parametrize("partially_shared", [False, True])
def test_a_shared_basis_gives_hensmans_bound(partially_shared):
    """α = β = Z: q(u) = N(Ka ρ, ρ²(K - K(B⁻¹+K)⁻¹K)) with prior N(0, ρ²K)."""
    case = make_case("points", m_alpha=4, m_beta=4)
    posterior = case.posterior
    if partially_shared:
        posterior = DecoupledPosterior(
            posterior.kernel,
            PointBasis(case.x[:0]),
            posterior.cov_basis,
            partially_shared=True,
        )
        with torch.no_grad():
            posterior.mean_coefficients.copy_(case.posterior.mean_coefficients)
            posterior.cov_factor.copy_(case.posterior.cov_factor)
        case.posterior = posterior
    else:
        posterior.mean_basis = posterior.cov_basis
    rho2, noise = case.rho2[0], case.noise[0]
    G = case.gram(posterior.cov_basis, case.x)
    K, K_xz = G[:4, :4], G[4:, :4]
    a, B = case.coefficients()
    m, S = np.sqrt(rho2) * K @ a, rho2 * (K - K @ dense.middle(B, K) @ K)
    expected = dense.hensman_bound(
        rho2 * K, rho2 * K_xz, np.full(12, rho2), m, S, noise, case.y[:, 0].numpy()
    )
    bound = elbo(posterior.measure(), case.likelihood, case.x, case.y).item()
    assert_allclose(bound, expected, rtol=1e-8)


def test_multipliers_of_one_give_plain_inducing_points():
    points = make_case("points", outputs=2)
    p = points.posterior
    multi = DecoupledPosterior(
        p.kernel,
        MultiscaleBasis(p.mean_basis.locations),
        MultiscaleBasis(p.cov_basis.locations),
        n_outputs=2,
    )
    with torch.no_grad():
        multi.mean_coefficients.copy_(p.mean_coefficients)
        multi.cov_factor.copy_(p.cov_factor)
    one, other = p.measure(), multi.measure()
    assert_allclose(one.mean(points.x).detach(), other.mean(points.x).detach(), rtol=1e-11)
    assert_allclose(
        one.covariance(points.x).detach(), other.covariance(points.x).detach(), atol=1e-11
    )
    columns = torch.tensor([0, 3])
    for some in (None, columns):
        assert_allclose(
            kl_divergence(one, None, some).item(),
            kl_divergence(other, None, some).item(),
            rtol=1e-11,
        )


@pytest.mark.parametrize("partially_shared", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", KINDS)
def test_adding_functions_changes_nothing(kind, dtype, partially_shared):
    case = make_case(
        kind,
        outputs=2,
        dtype=dtype,
        m_alpha=0 if partially_shared else 6,
        partially_shared=partially_shared,
    )

    def state():
        q = case.posterior.measure()
        bound = elbo(q, case.likelihood, case.x, case.y)
        return [part.detach().double() for part in (q.mean(case.x), q.variance(case.x), bound)]

    before = state()
    case.posterior.add(case.x[:5], case.x[:3])
    assert case.posterior.n_cov == 7
    assert case.posterior.n_mean == (9 if partially_shared else 11)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    for old, new in zip(before, state(), strict=True):
        assert_allclose(new, old, rtol=tolerance, atol=tolerance)


@given(st.integers(0, 10**6), st.sampled_from(KINDS), st.integers(0, 5), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_the_bound_never_exceeds_the_evidence(seed, kind, m_beta, m_alpha):
    case = make_case(kind, seed=seed, m_beta=m_beta, m_alpha=m_alpha)
    scale = 10.0 ** np.random.default_rng(seed).uniform(-2, 2)
    with torch.no_grad():
        case.posterior.mean_coefficients.mul_(scale)
        case.posterior.cov_factor.mul_(scale)
    bound = elbo(case.posterior.measure(), case.likelihood, case.x, case.y).item()
    K = case.rho2[0] * case.gram(case.x)
    assert bound <= dense.log_evidence(K, case.noise[0], case.y[:, 0].numpy()) + 1e-9


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mean_preconditioner": "none", "cov_preconditioner": "none"},
        {"mean_preconditioner": "nystrom", "cov_preconditioner": "full"},
        {"partially_shared": True},
        {"partially_shared": True, "mean_preconditioner": "nystrom"},
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_equal_finite_differences(kind, options, sampled):
    """Every parameter: a, L, both bases' locations and scales, length-scales, ρ, noise."""
    case = make_case(kind, n=5, m_alpha=3, m_beta=2, outputs=2, **options)
    modules = torch.nn.ModuleList([case.posterior, case.likelihood])
    columns = torch.tensor([0, 2]) if sampled else None

    def bound():
        return elbo(
            case.posterior.measure(), case.likelihood, case.x, case.y, n_total=50, columns=columns
        )

    bound().backward()
    checked = 0
    for name, parameter in modules.named_parameters():
        flat, grad = parameter.data.view(-1), parameter.grad.reshape(-1)
        for k in range(flat.numel()):
            old, step = flat[k].item(), 1e-5
            flat[k] = old + step
            above = bound().item()
            flat[k] = old - step
            below = bound().item()
            flat[k] = old
            assert_allclose(
                grad[k].item(), (above - below) / (2 * step), rtol=2e-6, atol=2e-6, err_msg=name
            )
            checked += 1
    assert checked > 20
