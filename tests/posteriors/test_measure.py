"""Mean, covariance and every KL against dense joint Gaussians."""

from itertools import chain, combinations, pairwise

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import dense
from decoupledgp.posteriors import kl_divergence
from models import KINDS, make_case

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
OPTIONS = (
    {},
    {"mean_preconditioner": "none", "cov_preconditioner": "none"},
    {"mean_preconditioner": "nystrom", "cov_preconditioner": "full"},
    {"partially_shared": True},
)


def joint(case, output=0, extra=()):
    """Dense moments on α ∪ β (∪ x ∪ extra), with where each part sits."""
    p = case.posterior
    shared = [p.cov_basis] if p.partially_shared else []
    parts = [*shared, p.mean_basis, p.cov_basis, case.x, *extra]
    G = case.gram(*parts)
    edges = np.cumsum([0, *(len(part) for part in parts)])
    index = [list(range(a, b)) for a, b in pairwise(edges)]
    alpha = list(chain(*index[: len(shared) + 1]))
    beta, x = index[len(shared) + 1], index[len(shared) + 2]
    a, B = case.coefficients(output)
    mean, cov = dense.moments(G, alpha, a, beta, B)
    return G, mean, cov, alpha, beta, x


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", KINDS)
def test_predictions_equal_dense(kind, dtype, options):
    """float32: 1e-4 relative to the prior's scale."""
    case = make_case(kind, outputs=2, dtype=dtype, **options)
    q = case.posterior.measure()
    for p in range(2):
        _, mean, cov, _, _, x = joint(case, p)
        rho = np.sqrt(case.rho2[p])
        tolerance = {"atol": TOLERANCE[dtype], "rtol": TOLERANCE[dtype]}
        assert_allclose(q.mean(case.x)[:, p].detach(), rho * mean[x], **tolerance)
        expected = rho**2 * cov[np.ix_(x, x)]
        assert_allclose(q.variance(case.x)[:, p].detach(), np.diag(expected), **tolerance)
        assert_allclose(q.covariance(case.x)[p].detach(), expected, **tolerance)
        assert_allclose(
            q.covariance(case.x[:3], case.x[3:])[p].detach(), expected[:3, 3:], **tolerance
        )


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_kl_to_the_standard_prior_equals_dense(kind, options):
    """On α ∪ β; and test points added to them change nothing."""
    case = make_case(kind, outputs=2, **options)
    total = 0.0
    for p in range(2):
        G, mean, cov, alpha, beta, x = joint(case, p)
        on = sorted(
            set(beta) | set(alpha[len(beta) :] if options.get("partially_shared") else alpha)
        )
        some = np.ix_(on, on)
        kl = dense.gaussian_kl(mean[on], cov[some], np.zeros(len(on)), G[some])
        with_x = on + x[:2]
        more = np.ix_(with_x, with_x)
        assert_allclose(
            kl,
            dense.gaussian_kl(mean[with_x], cov[more], np.zeros(len(with_x)), G[more]),
            rtol=1e-5,
        )
        total += kl
    assert_allclose(kl_divergence(case.posterior.measure()).item(), total, rtol=1e-7)


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_general_kl_equals_dense(kind, outputs):
    q_case = make_case(kind, outputs=outputs, m_alpha=4, m_beta=3)
    p_case = make_case(kind, outputs=outputs, m_alpha=3, m_beta=2, seed=7)
    q, p = q_case.posterior, p_case.posterior
    p.kernel = q.kernel
    parts = [q.mean_basis, q.cov_basis, p.mean_basis, p.cov_basis]
    G = q_case.gram(*parts)
    edges = np.cumsum([0, *(len(part) for part in parts)])
    i, j, k, l = [list(range(a, b)) for a, b in pairwise(edges)]
    expected = sum(
        dense.gaussian_kl(
            *dense.moments(G, i, q_case.coefficients(o)[0], j, q_case.coefficients(o)[1]),
            *dense.moments(G, k, p_case.coefficients(o)[0], l, p_case.coefficients(o)[1]),
        )
        for o in range(outputs)
    )
    assert_allclose(kl_divergence(q.measure(), p.measure()).item(), expected, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_general_kl_with_a_standard_prior_is_the_simple_one(kind):
    case, prior = make_case(kind, outputs=2), make_case(kind, outputs=2, seed=3)
    prior.posterior.kernel = case.posterior.kernel
    with torch.no_grad():
        prior.posterior.mean_coefficients.zero_()
        prior.posterior.cov_factor.zero_()
    q = case.posterior.measure()
    assert_allclose(
        kl_divergence(q, prior.posterior.measure()).item(), kl_divergence(q).item(), rtol=1e-12
    )


@pytest.mark.parametrize("kind", KINDS)
def test_kl_to_itself_is_zero(kind):
    q = make_case(kind, outputs=2).posterior.measure()
    assert abs(kl_divergence(q, q).item()) < 1e-9


@pytest.mark.parametrize("with_prior", [False, True])
@pytest.mark.parametrize("size", [1, 2, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_sampled_kl_is_unbiased_with_all_gradients(kind, size, with_prior):
    """The average over all subsets S of equal size is the full KL; so are all derivatives."""
    case = make_case(kind, outputs=2)
    posterior, prior = case.posterior, None
    if with_prior:
        other = make_case(kind, outputs=2, m_alpha=2, seed=5).posterior
        other.kernel = posterior.kernel
        prior = other.measure()
    total = posterior.n_mean + (2 if with_prior else 0)
    subsets = list(combinations(range(total), size))

    def value_and_gradients(columns):
        posterior.zero_grad()
        p = prior
        if with_prior:
            p = other.measure()
        kl = kl_divergence(posterior.measure(), p, columns)
        kl.backward()
        return [
            kl.detach(),
            *(w.grad.clone() for w in posterior.parameters() if w.grad is not None),
        ]

    full = value_and_gradients(None)
    sums = [torch.zeros_like(part) for part in full]
    for subset in subsets:
        for acc, part in zip(sums, value_and_gradients(torch.tensor(subset)), strict=True):
            acc += part / len(subsets)
    for average, expected in zip(sums, full, strict=True):
        assert_allclose(average, expected, rtol=1e-9, atol=1e-9)


def test_no_covariance_functions_leave_the_prior():
    for kind in KINDS:
        case = make_case(kind, m_beta=0)
        q = case.posterior.measure()
        assert_allclose(q.variance(case.x).detach(), np.full((12, 1), case.rho2[0]), rtol=1e-12)
        a = case.coefficients()[0]
        expected = 0.5 * a @ case.gram(case.posterior.mean_basis) @ a
        assert_allclose(kl_divergence(q).item(), expected, rtol=1e-10)


def test_outputs_are_independent_posteriors():
    case = make_case("multiscale", outputs=3)
    q = case.posterior.measure()
    parts = [q.output(p) for p in range(3)]
    assert_allclose(
        kl_divergence(q).item(), sum(kl_divergence(part).item() for part in parts), rtol=1e-12
    )


def test_variance_never_exceeds_the_prior_nor_falls_below_zero():
    case = make_case("points", n=50, dtype=torch.float32)
    with torch.no_grad():
        case.posterior.cov_factor.mul_(1e4)  # as after millions of nearly noise-free rows
    variance = case.posterior.measure().variance(case.x)
    assert (variance >= 0).all()
    assert (variance <= case.rho2[0] * (1 + 1e-12)).all()
