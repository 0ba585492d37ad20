"""Solved bounds against dense formulas, GPyTorch, and the decoupled family they are members of."""

import gpytorch
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import dense
from decoupledgp.bases import MultiscaleBasis, PointBasis
from decoupledgp.bound import elbo
from decoupledgp.collapsed import Collapsed, Evidence, log_evidence
from decoupledgp.kernels import scaled_kernel, se_ard
from decoupledgp.likelihoods import gaussian_likelihood
from decoupledgp.posteriors import DecoupledMeasure
from differences import assert_gradients

D, P = 2, 2


class Problem:
    """Random rows, hyper-parameters and basis, all in float64."""

    def __init__(self, seed=0, n=12, m=5, basis=MultiscaleBasis):
        rng = np.random.default_rng(seed)
        self.x = torch.tensor(rng.uniform(-2, 2, (n, D)))
        self.y = torch.tensor(rng.standard_normal((n, P)))
        self.kernel = scaled_kernel(se_ard(D), P).double()
        self.kernel.base_kernel.lengthscale = torch.tensor(rng.uniform(0.5, 1.5, (1, D)))
        self.kernel.outputscale = torch.tensor(rng.uniform(0.5, 2.0, P))
        self.likelihood = gaussian_likelihood(P).double()
        self.likelihood.noise = torch.tensor(rng.uniform(0.05, 0.5, (P, 1)))
        self.basis = basis(torch.tensor(rng.uniform(-2, 2, (m, D))))
        if basis is MultiscaleBasis:
            self.basis.log_multipliers.data = torch.tensor(0.3 * rng.standard_normal((m, D)))

    @property
    def rho2(self):
        return self.kernel.outputscale

    @property
    def noise(self):
        return self.likelihood.noise.reshape(-1)

    def functions(self, basis=None):
        return (basis or self.basis).at(self.kernel.base_kernel)

    def collapsed(self, basis=None):
        prior = torch.tensor(float(len(self.x)), dtype=torch.float64)
        functions = self.functions(basis)
        return Collapsed(functions, self.rho2, self.noise, self.x, self.y, prior)

    def evidence(self):
        return Evidence(self.functions(PointBasis(self.x)), self.rho2, self.noise, self.y)

    def measure(self, solution, basis=None):
        functions = self.functions(basis)
        a, L = solution.coefficients()
        return DecoupledMeasure(self.kernel, functions, a, functions, L)

    def dense_K(self):
        s = self.kernel.base_kernel.lengthscale.detach().numpy().ravel()
        return dense.se_gram(self.x.numpy(), self.x.numpy(), s)

    def dense_evidence(self):
        return sum(
            dense.log_evidence(float(rho2) * self.dense_K(), float(noise), self.y[:, p].numpy())
            for p, (rho2, noise) in enumerate(zip(self.rho2, self.noise, strict=True))
        )


def number(tensor):
    return float(tensor.detach())


def test_the_evidence_is_that_of_the_definition():
    problem = Problem()
    assert_allclose(number(problem.evidence().bound()), problem.dense_evidence(), rtol=1e-12)


def test_the_evidence_is_gpytorchs():
    problem = Problem()
    total = 0.0
    for p in range(P):
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        likelihood.noise = float(problem.noise[p])

        class Exact(gpytorch.models.ExactGP):
            def __init__(self, x, y, likelihood, scale):
                super().__init__(x, y, likelihood)
                self.mean = gpytorch.means.ZeroMean()
                base = gpytorch.kernels.RBFKernel(ard_num_dims=D)
                self.covariance = gpytorch.kernels.ScaleKernel(base).double()
                base.lengthscale = problem.kernel.base_kernel.lengthscale.detach()
                self.covariance.outputscale = scale

            def forward(self, x):
                return gpytorch.distributions.MultivariateNormal(self.mean(x), self.covariance(x))

        model = Exact(problem.x, problem.y[:, p], likelihood, float(problem.rho2[p])).double()
        likelihood_of = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
        model.train()
        total += number(likelihood_of(model(problem.x), problem.y[:, p])) * len(problem.x)
    assert_allclose(number(problem.evidence().bound()), total, rtol=1e-6)


@pytest.mark.parametrize("basis", [PointBasis, MultiscaleBasis])
def test_the_collapsed_bound_is_that_of_the_definition(basis):
    problem = Problem(basis=basis)
    functions = problem.functions()
    K_xz, K = functions.evaluate(problem.x), functions.gram()
    Q = (K_xz @ torch.linalg.solve(K, K_xz.T)).detach().numpy()
    total = 0.0
    for p in range(P):
        rho2, noise = float(problem.rho2[p]), float(problem.noise[p])
        total += dense.log_evidence(rho2 * Q, noise, problem.y[:, p].numpy())
        total -= rho2 * (len(Q) - np.trace(Q)) / (2 * noise)
    assert_allclose(number(problem.collapsed().bound()), total, rtol=1e-5)


@pytest.mark.parametrize("basis", [PointBasis, MultiscaleBasis])
def test_it_is_hensmans_bound_at_its_optimum(basis):
    """SVI with the optimal q(u) = N(m, S) is VSGPR."""
    problem = Problem(basis=basis)
    functions = problem.functions()
    K_xz = functions.evaluate(problem.x).detach().numpy()
    K = functions.gram().detach().numpy() + 1e-8 * np.eye(len(problem.basis))
    total = 0.0
    for p in range(P):
        rho2, noise, y = float(problem.rho2[p]), float(problem.noise[p]), problem.y[:, p].numpy()
        scaled, cross = rho2 * K, rho2 * K_xz
        middle = np.linalg.inv(scaled + cross.T @ cross / noise)
        S = scaled @ middle @ scaled
        m = scaled @ middle @ cross.T @ y / noise
        total += dense.hensman_bound(scaled, cross, np.full(len(y), rho2), m, S, noise, y)
    assert_allclose(number(problem.collapsed().bound()), total, rtol=1e-5)


def test_with_the_rows_as_basis_it_is_the_evidence():
    problem = Problem()
    rows = PointBasis(problem.x)
    expected = problem.evidence()
    got = problem.collapsed(rows)
    assert_allclose(number(got.bound()), number(expected.bound()), rtol=1e-5)
    assert_allclose(got.mean().detach(), expected.mean().detach(), atol=1e-5)


@given(st.integers(0, 9999), st.integers(1, 20), st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_the_collapsed_bound_never_exceeds_the_evidence(seed, n, m):
    problem = Problem(seed, n, m)
    bound = number(problem.collapsed().bound())
    assert bound <= problem.dense_evidence() + 1e-6 * abs(bound)


@pytest.mark.parametrize("exact", [True, False])
def test_the_solution_is_a_decoupled_measure_with_the_same_bound_and_mean(exact):
    problem = Problem()
    basis = PointBasis(problem.x) if exact else problem.basis
    solution = problem.evidence() if exact else problem.collapsed()
    q = problem.measure(solution, basis)
    bound = elbo(q, problem.likelihood, problem.x, problem.y)
    assert_allclose(number(bound), number(solution.bound()), rtol=1e-5)
    assert_allclose(q.mean(problem.x).detach(), solution.mean().detach(), atol=1e-5)


def test_the_exact_solution_predicts_as_an_exact_gp():
    problem = Problem()
    q = problem.measure(problem.evidence(), PointBasis(problem.x))
    new = torch.tensor(np.random.default_rng(1).uniform(-2, 2, (4, D)))
    s = problem.kernel.base_kernel.lengthscale.detach().numpy().ravel()
    for p in range(P):
        rho2, noise = float(problem.rho2[p]), float(problem.noise[p])
        K = rho2 * problem.dense_K()
        cross = rho2 * dense.se_gram(new.numpy(), problem.x.numpy(), s)
        prior = rho2 * dense.se_gram(new.numpy(), new.numpy(), s)
        mean, cov = dense.exact_posterior(K, cross, prior, noise, problem.y[:, p].numpy())
        assert_allclose(q.mean(new)[:, p].detach(), mean, rtol=1e-9)
        assert_allclose(q.covariance(new)[p].detach(), cov, atol=1e-10)
        assert_allclose(q.variance(new)[:, p].detach(), np.diag(cov), atol=1e-10)


@pytest.mark.parametrize("exact", [True, False])
def test_gradients_are_those_of_finite_differences(exact):
    problem = Problem(n=6, m=3)
    parameters = [*problem.kernel.parameters(), *problem.likelihood.parameters()]
    if not exact:
        parameters += problem.basis.parameters()

    def bound():
        return (problem.evidence() if exact else problem.collapsed()).bound()

    assert_gradients(bound, parameters)


def test_duplicated_functions_do_not_break_it():
    problem = Problem()
    twice = PointBasis(torch.cat([problem.x[:4], problem.x[:4]]))
    once = PointBasis(problem.x[:4])
    assert_allclose(
        number(problem.collapsed(twice).bound()), number(problem.collapsed(once).bound()), rtol=1e-5
    )


def test_the_log_evidence_is_that_of_the_exact_gp_with_the_right_gradients():
    problem = Problem()
    functions = PointBasis(problem.x).at(problem.kernel.base_kernel)
    K = functions.gram().detach().requires_grad_()
    rho2, noise = (part.detach().clone().requires_grad_() for part in (problem.rho2, problem.noise))
    expected = Evidence(functions, rho2, noise, problem.y).bound()
    shape = problem.y.shape
    found = log_evidence(K, rho2, noise.expand(shape), problem.y)
    assert_allclose(found.detach(), expected.detach())
    assert_gradients(lambda: log_evidence(K, rho2, noise.expand(shape), problem.y), [rho2, noise])
    shift = torch.zeros_like(K).requires_grad_()  # symmetric changes of K only
    assert_gradients(
        lambda: log_evidence(
            K.detach() + shift + shift.T, rho2.detach(), noise.detach().expand(shape), problem.y
        ),
        [shift],
    )


def test_the_log_evidence_of_rows_with_noise_of_their_own():
    problem = Problem()
    K = PointBasis(problem.x).at(problem.kernel.base_kernel).gram().detach()
    rng = np.random.default_rng(0)
    noise = torch.tensor(rng.uniform(0.1, 2, problem.y.shape), requires_grad=True)
    rho2 = problem.rho2.detach()
    expected = 0.0
    for p in range(problem.y.shape[1]):
        C = rho2[p].item() * K.numpy() + np.diag(noise[:, p].detach().numpy())
        y = problem.y[:, p].numpy()
        log_det = np.linalg.slogdet(2 * np.pi * C)[1]
        expected -= 0.5 * (y @ np.linalg.solve(C, y) + log_det)
    assert_allclose(log_evidence(K, rho2, noise, problem.y).item(), expected)
    assert_gradients(lambda: log_evidence(K, rho2, noise, problem.y), [noise])
