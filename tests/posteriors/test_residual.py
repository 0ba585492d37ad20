"""Hybrid and orthogonal families: against dense Gaussians and the shared family they contain."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import dense
from decoupledgp.bases import MultiscaleBasis, PointBasis
from decoupledgp.bound import elbo
from decoupledgp.kernels import se_ard
from decoupledgp.learners import NaturalLearner
from decoupledgp.likelihoods import gaussian_likelihood
from decoupledgp.posteriors import ResidualPosterior, SharedPosterior, kl_divergence
from differences import assert_gradients

D, P, M, R, N = 2, 2, 4, 5, 10
JITTER = 1e-8

both = pytest.mark.parametrize("orthogonal", [False, True])
bases = pytest.mark.parametrize("basis", [PointBasis, MultiscaleBasis])


def make(orthogonal, basis=PointBasis, seed=0, dtype=torch.float64):
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return torch.tensor(rng.uniform(-2, 2, shape), dtype=dtype)

    posterior = ResidualPosterior(
        se_ard(D).to(dtype),
        basis(draw(R, D)),
        basis(draw(M, D)),
        orthogonal=orthogonal,
        n_outputs=P,
    )
    posterior.kernel.outputscale = draw(P).abs() + 0.5
    root = torch.tensor(rng.standard_normal((P, M, M)))
    posterior.precision.copy_(root @ root.mT)
    posterior.shift.copy_(torch.tensor(rng.standard_normal((M, P))))
    posterior.residual_coefficients.data.copy_(draw(R, P))
    likelihood = gaussian_likelihood(P).to(dtype)
    likelihood.noise = 0.1 * draw(P, 1).abs() + 0.1
    return posterior, likelihood, draw(N, D), draw(N, P)


def number(tensor):
    return float(tensor.detach())


def dense_reference(posterior, x, p):
    """Joint mean and covariance of (β, r, x) and their prior's, unscaled, for an output."""
    base = posterior.kernel.base_kernel
    parts = [posterior.basis.at(base), posterior.residual_basis.at(base)]
    joined = parts[0].join(parts[1]).join(PointBasis(x).at(base))
    G = joined.gram().detach().numpy()
    beta, residual = np.arange(M), np.arange(M, M + R)
    K = G[:M, :M] + JITTER * np.eye(M)
    C = np.linalg.cholesky(K)
    S_white = np.linalg.inv(np.eye(M) + posterior.precision[p].numpy())
    a = np.linalg.solve(C.T, S_white @ posterior.shift[:, p].numpy())
    a_r = posterior.residual_coefficients[:, p].detach().numpy()
    if posterior.orthogonal:
        a = a - np.linalg.solve(K, G[np.ix_(beta, residual)] @ a_r)
    mean = G[:, beta] @ a + G[:, residual] @ a_r
    middle = np.linalg.solve(C.T, np.linalg.solve(C.T, np.eye(M) - S_white).T)
    return mean, G - G[:, beta] @ middle @ G[beta], G


@both
@bases
def test_moments_and_kl_are_the_dense_ones(orthogonal, basis):
    posterior, _, x, _ = make(orthogonal, basis)
    q = posterior.measure()
    mean, variance = q.mean(x).detach().numpy(), q.variance(x).detach().numpy()
    covariance = q.covariance(x).detach().numpy()
    kl = 0.0
    for p in range(P):
        rho2 = float(posterior.kernel.outputscale[p])
        m, S, G = dense_reference(posterior, x, p)
        assert_allclose(mean[:, p], np.sqrt(rho2) * m[M + R :], atol=1e-5)
        assert_allclose(covariance[p], rho2 * S[M + R :, M + R :], atol=1e-5)
        assert_allclose(variance[:, p], rho2 * np.diag(S)[M + R :], atol=1e-5)
        few = slice(M + R)
        kl += dense.gaussian_kl(m[few], S[few, few], np.zeros(M + R), G[few, few])
    assert_allclose(number(kl_divergence(q)), kl, rtol=1e-4)


@both
@bases
def test_without_a_residual_they_are_the_shared_family(orthogonal, basis):
    posterior, likelihood, x, y = make(orthogonal, basis)
    posterior.residual_coefficients.data.zero_()
    shared = SharedPosterior(posterior.kernel, posterior.basis, n_outputs=P)
    shared.shift, shared.precision = posterior.shift, posterior.precision
    q, expected = posterior.measure(), shared.measure()
    assert_allclose(q.mean(x).detach(), expected.mean(x).detach(), atol=1e-12)
    assert_allclose(number(kl_divergence(q)), number(kl_divergence(expected)), rtol=1e-12)
    bounds = [number(elbo(part, likelihood, x, y)) for part in (q, expected)]
    assert_allclose(*bounds, rtol=1e-12)


@both
def test_the_sampled_kl_is_unbiased_with_its_gradients(orthogonal):
    posterior, *_ = make(orthogonal)
    parameters = list(posterior.parameters())

    def value_and_gradients(columns):
        kl = kl_divergence(posterior.measure(), columns=columns)
        return [kl, *torch.autograd.grad(kl, parameters, allow_unused=True)]

    exact = value_and_gradients(None)
    sampled = [value_and_gradients(torch.tensor([i, j])) for i in range(R) for j in range(i)]
    for k, expected in enumerate(exact):
        if expected is not None:
            average = torch.stack([parts[k].detach() for parts in sampled]).mean(0)
            assert_allclose(average, expected.detach(), atol=1e-10)


@both
@bases
def test_adding_functions_changes_nothing(orthogonal, basis):
    posterior, likelihood, x, y = make(orthogonal, basis)
    before = posterior.measure()
    moments = before.mean(x), before.variance(x), elbo(before, likelihood, x, y)
    posterior.add(x[:5], x[:2])
    assert (posterior.n_mean, posterior.n_cov) == (M + R + 5, M + 2)
    after = posterior.measure()
    for old, now in zip(
        moments, (after.mean(x), after.variance(x), elbo(after, likelihood, x, y)), strict=True
    ):
        assert_allclose(now.detach(), old.detach(), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="first of the mean rows"):
        posterior.add(x[:2], x[2:3])


@both
def test_gradients_are_those_of_finite_differences(orthogonal):
    posterior, likelihood, x, y = make(orthogonal, MultiscaleBasis)
    parameters = [*posterior.parameters(), *likelihood.parameters()]

    def bound():
        return elbo(posterior.measure(), likelihood, x, y)

    assert_gradients(bound, parameters, rtol=1e-4, atol=1e-4)


@both
def test_a_steps_marginals_are_those_of_prediction(orthogonal):
    posterior, _, x, _ = make(orthogonal, MultiscaleBasis)
    q = posterior.measure()
    mean, variance = q.marginals(x, q.whitened(x))
    assert_allclose(mean.detach(), q.mean(x).detach(), rtol=1e-9)
    assert_allclose(variance.detach(), q.variance(x).detach(), rtol=1e-9)


@both
def test_a_natural_step_of_size_one_is_the_optimum_given_the_residual(orthogonal):
    posterior, likelihood, x, y = make(orthogonal)
    learner = NaturalLearner(posterior, likelihood, learning_rate=1e-15, natural_rate=1.0)
    rng = np.random.default_rng(0)
    learner.step(x, y, n_total=N, iteration=1, rng=rng)
    best = number(elbo(posterior.measure(), likelihood, x, y))
    shift, precision = posterior.shift.clone(), posterior.precision.clone()
    for size in (0.1, 0.01):
        for _ in range(5):
            posterior.shift.copy_(shift + size * torch.tensor(rng.standard_normal((M, P))))
            assert number(elbo(posterior.measure(), likelihood, x, y)) < best
            posterior.shift.copy_(shift)
            root = torch.linalg.cholesky(precision)
            root = root + size * torch.tensor(rng.standard_normal((P, M, M)))
            posterior.precision.copy_(root @ root.mT)
            assert number(elbo(posterior.measure(), likelihood, x, y)) < best
            posterior.precision.copy_(precision)


@both
def test_the_bound_never_exceeds_the_evidence(orthogonal):
    for seed in range(15):
        posterior, likelihood, x, y = make(orthogonal, MultiscaleBasis, seed)
        s = posterior.kernel.base_kernel.lengthscale.detach().numpy().ravel()
        K = dense.se_gram(x.numpy(), x.numpy(), np.broadcast_to(s, D))
        evidence = sum(
            dense.log_evidence(
                float(posterior.kernel.outputscale[p]) * K,
                float(likelihood.noise[p]),
                y[:, p].numpy(),
            )
            for p in range(P)
        )
        assert number(elbo(posterior.measure(), likelihood, x, y)) <= evidence


@both
def test_float32_is_close_to_float64(orthogonal):
    values = [
        number(elbo(posterior.measure(), likelihood, x, y))
        for posterior, likelihood, x, y in (
            make(orthogonal, MultiscaleBasis, dtype=dtype)
            for dtype in (torch.float32, torch.float64)
        )
    ]
    assert_allclose(*values, rtol=1e-4)
