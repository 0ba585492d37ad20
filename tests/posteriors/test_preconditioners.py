"""Preconditioners against dense linear algebra, and what a family that uses them must keep."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from decoupledgp.bases import MultiscaleBasis, PointBasis
from decoupledgp.bound import elbo
from decoupledgp.kernels import se_ard
from decoupledgp.posteriors import ResidualPosterior
from decoupledgp.posteriors.preconditioners import (
    SMALLEST_REMAINDER,
    Diagonal,
    Nystrom,
    cov_factor,
    mean_preconditioner,
)
from models import KINDS, make_case

JITTER = 1e-8


def grams(case):
    """Dense K_α, K_αβ and K_β of a case."""
    p = case.posterior
    G, m = case.gram(p.mean_basis, p.cov_basis), len(p.mean_basis)
    return G[:m, :m], G[:m, m:], G[m:, m:]


def functions(case):
    base = case.posterior.kernel.base_kernel
    return case.posterior.mean_basis.at(base), case.posterior.cov_basis.at(base)


def dense_nystrom(case):
    K, cross, K_beta = grams(case)
    Q = cross @ np.linalg.solve(K_beta + JITTER * np.eye(len(K_beta)), cross.T)
    remainder = np.maximum(np.diag(K - Q), SMALLEST_REMAINDER * np.diag(K))
    return Q + np.diag(remainder)


@pytest.mark.parametrize("kind", KINDS)
def test_nystrom_is_the_dense_one(kind):
    case = make_case(kind, outputs=2)
    P, expected = Nystrom(*functions(case)), dense_nystrom(case)
    a = case.posterior.mean_coefficients.detach()
    assert_allclose(P.multiply(a).detach(), expected @ a.numpy(), rtol=1e-9)
    assert_allclose(P.solve(a).detach(), np.linalg.solve(expected, a.numpy()), rtol=1e-8)


def test_nystrom_is_the_gram_matrix_where_the_covariance_basis_knows_all_functions():
    """Up to the remainder that each function keeps."""
    case = make_case("points", m_alpha=4, m_beta=4)
    case.posterior.cov_basis.locations.data.copy_(case.posterior.mean_basis.locations)
    P = Nystrom(*functions(case)).multiply(torch.eye(4, dtype=torch.float64)).detach()
    assert_allclose(P, grams(case)[0] + SMALLEST_REMAINDER * np.eye(4), atol=1e-6)


def test_nystrom_without_covariance_functions_is_jacobis():
    case = make_case("matern", m_beta=0)
    a = case.posterior.mean_coefficients.detach()
    jacobi = mean_preconditioner("jacobi", *functions(case))
    assert_allclose(Nystrom(*functions(case)).solve(a).detach(), jacobi.solve(a).detach())


def test_solve_undoes_multiply():
    case = make_case("multiscale", outputs=3)
    a = case.posterior.mean_coefficients.detach()
    for P in (Nystrom(*functions(case)), Diagonal(torch.rand(len(a), dtype=torch.float64) + 0.1)):
        assert_allclose(P.solve(P.multiply(a)).detach(), a, rtol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_the_full_factor_makes_the_covariance_quadratic_that_of_L0(kind):
    case = make_case(kind, outputs=2)
    L0 = case.posterior.cov_factor.detach().tril()
    L = cov_factor("full", functions(case)[1], L0).detach().numpy()
    K = grams(case)[2] + JITTER * np.eye(L0.shape[1])
    L0 = L0.numpy()
    assert_allclose(L.transpose(0, 2, 1) @ K @ L, L0.transpose(0, 2, 1) @ L0, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("partially_shared", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_growth_changes_nothing(kind, partially_shared):
    """Covariance functions come too, and with them another P and another C."""
    options = {"mean_preconditioner": "nystrom", "cov_preconditioner": "full"}
    m_alpha = 0 if partially_shared else 6
    case = make_case(kind, outputs=2, m_alpha=m_alpha, partially_shared=partially_shared, **options)
    before = case.posterior.measure()
    kept = [before.mean(case.x), before.covariance(case.x), before.kl()]
    bound = elbo(before, case.likelihood, case.x, case.y)
    case.posterior.add(case.x[:5], case.x[:3])
    after = case.posterior.measure()
    now = [after.mean(case.x), after.covariance(case.x), after.kl()]
    for new, old in zip(now, kept, strict=True):
        assert_allclose(new.detach(), old.detach(), rtol=1e-6, atol=1e-6)
    grown = elbo(after, case.likelihood, case.x, case.y)
    assert_allclose(grown.detach(), bound.detach(), rtol=1e-6)


def test_growth_of_a_hybrid_changes_nothing():
    x = torch.tensor(np.random.default_rng(0).uniform(-2, 2, (12, 2)))
    posterior = ResidualPosterior(
        se_ard(2).double(),
        MultiscaleBasis(x[:4]),
        MultiscaleBasis(x[4:7]),
        orthogonal=False,
        mean_preconditioner="nystrom",
    )
    posterior.residual_coefficients.data.normal_()
    posterior.shift.normal_()
    before = posterior.measure()
    mean, kl = before.mean(x).detach(), before.kl().detach()
    posterior.add(x[7:12], x[7:9])
    after = posterior.measure()
    assert_allclose(after.mean(x).detach(), mean, rtol=1e-6, atol=1e-7)
    assert_allclose(after.kl().detach(), kl, rtol=1e-6)


def test_what_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="must be one of none, jacobi, nystrom, not 'full'"):
        make_case("points", mean_preconditioner="full")
    with pytest.raises(ValueError, match="must be one of none, jacobi, full, not 'nystrom'"):
        make_case("points", cov_preconditioner="nystrom")
    basis = PointBasis(torch.zeros(1, 2))
    with pytest.raises(ValueError, match='nothing for "nystrom" to precondition'):
        ResidualPosterior(se_ard(2), basis, basis, orthogonal=True, mean_preconditioner="nystrom")
