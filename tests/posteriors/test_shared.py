"""The shared family by natural parameters: against dense Gaussians, Hensman's bound, and GPyTorch."""

import gpytorch
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import dense
from decoupledgp.bases import MultiscaleBasis, PointBasis
from decoupledgp.bound import elbo
from decoupledgp.collapsed import Collapsed
from decoupledgp.kernels import se_ard
from decoupledgp.learners import NaturalLearner
from decoupledgp.likelihoods import gaussian_likelihood
from decoupledgp.posteriors import SharedPosterior, kl_divergence
from differences import assert_gradients

D, P, M, N = 2, 2, 5, 12
JITTER = 1e-8


def make(basis=PointBasis, seed=0, m=M):
    """Return a posterior with random parameters, a likelihood and rows."""
    rng = np.random.default_rng(seed)
    functions = basis(torch.tensor(rng.uniform(-2, 2, (m, D))))
    posterior = SharedPosterior(se_ard(D).double(), functions, n_outputs=P)
    posterior.kernel.outputscale = torch.tensor(rng.uniform(0.5, 2, P))
    posterior.kernel.base_kernel.lengthscale = torch.tensor(rng.uniform(0.5, 1.5, (1, D)))
    root = torch.tensor(rng.standard_normal((P, m, m)))
    posterior.precision.copy_(root @ root.mT)
    posterior.shift.copy_(torch.tensor(rng.standard_normal((m, P))))
    likelihood = gaussian_likelihood(P).double()
    likelihood.noise = torch.tensor(rng.uniform(0.1, 0.5, (P, 1)))
    x, y = torch.tensor(rng.uniform(-2, 2, (N, D))), torch.tensor(rng.standard_normal((N, P)))
    return posterior, likelihood, x, y


def canonical(posterior, p):
    """Return K, m, S of the inducing values ρ u of an output, dense."""
    rho2 = float(posterior.kernel.outputscale[p])
    K = posterior.basis.at(posterior.kernel.base_kernel).gram().detach().numpy()
    K = K + JITTER * np.eye(len(K))
    C = np.sqrt(rho2) * np.linalg.cholesky(K)
    S_white = np.linalg.inv(np.eye(len(K)) + posterior.precision[p].numpy())
    m_white = S_white @ posterior.shift[:, p].numpy()
    return rho2 * K, C @ m_white, C @ S_white @ C.T


def number(tensor):
    return float(tensor.detach())


@pytest.mark.parametrize("basis", [PointBasis, MultiscaleBasis])
def test_moments_kl_and_bound_are_hensmans(basis):
    posterior, likelihood, x, y = make(basis)
    q = posterior.measure()
    cross = posterior.basis.at(posterior.kernel.base_kernel).evaluate(x).detach().numpy()
    mean, variance, covariance = (
        part.detach().numpy() for part in (q.mean(x), q.variance(x), q.covariance(x))
    )
    kl = bound = 0.0
    for p in range(P):
        rho2, noise = float(posterior.kernel.outputscale[p]), float(likelihood.noise[p])
        K, m, S = canonical(posterior, p)
        A = np.linalg.solve(K, rho2 * cross.T).T
        assert_allclose(mean[:, p], A @ m, atol=1e-6)
        expected = rho2 - np.sum(A * (rho2 * cross), 1) + np.sum((A @ S) * A, 1)
        assert_allclose(variance[:, p], expected, atol=1e-6)
        assert_allclose(np.diagonal(covariance[p]), expected, atol=1e-6)
        kl += dense.gaussian_kl(m, S, np.zeros(len(m)), K)
        diagonal = np.full(N, rho2)
        bound += dense.hensman_bound(K, rho2 * cross, diagonal, m, S, noise, y[:, p].numpy())
    assert_allclose(number(kl_divergence(q)), kl, rtol=1e-6)
    assert_allclose(number(elbo(q, likelihood, x, y)), bound, rtol=1e-6)


def test_the_bound_is_gpytorchs_variational_elbo():
    posterior, likelihood, x, y = make()
    total = 0.0
    for p in range(P):
        S = torch.linalg.inv(torch.eye(M) + posterior.precision[p])
        distribution = gpytorch.variational.CholeskyVariationalDistribution(M).double()
        distribution.variational_mean.data = S @ posterior.shift[:, p]
        distribution.chol_variational_covar.data = torch.linalg.cholesky(S)

        class Model(gpytorch.models.ApproximateGP):
            def __init__(self, distribution, scale):
                strategy = gpytorch.variational.VariationalStrategy(
                    self, posterior.basis.locations.detach(), distribution
                )
                super().__init__(strategy)
                base = gpytorch.kernels.RBFKernel(ard_num_dims=D)
                self.covariance = gpytorch.kernels.ScaleKernel(base).double()
                base.lengthscale = posterior.kernel.base_kernel.lengthscale.detach()
                self.covariance.outputscale = scale

            def forward(self, x):
                zero = torch.zeros(len(x), dtype=x.dtype)
                return gpytorch.distributions.MultivariateNormal(zero, self.covariance(x))

        model = Model(distribution, float(posterior.kernel.outputscale[p])).double()
        model.variational_strategy.variational_params_initialized.fill_(1)
        noise = gpytorch.likelihoods.GaussianLikelihood().double()
        noise.noise = float(likelihood.noise[p])
        objective = gpytorch.mlls.VariationalELBO(noise, model, num_data=N)
        with gpytorch.settings.variational_cholesky_jitter(double_value=JITTER):
            total += number(objective(model(x), y[:, p])) * N
    got = number(elbo(posterior.measure(), likelihood, x, y))
    assert_allclose(got, total, rtol=1e-6)


@pytest.mark.parametrize("basis", [PointBasis, MultiscaleBasis])
def test_adding_functions_changes_nothing(basis):
    posterior, likelihood, x, y = make(basis)
    new = torch.tensor(np.random.default_rng(5).uniform(-2, 2, (3, D)))
    before = posterior.measure()
    moments = before.mean(x), before.variance(x), elbo(before, likelihood, x, y)
    posterior.add(new, new)
    after = posterior.measure()
    assert posterior.n_mean == posterior.n_cov == M + 3
    for old, now in zip(
        moments, (after.mean(x), after.variance(x), elbo(after, likelihood, x, y)), strict=True
    ):
        assert_allclose(now.detach(), old.detach(), rtol=1e-6, atol=1e-7)
    with pytest.raises(ValueError, match="same rows"):
        posterior.add(new, new[:1])


@pytest.mark.parametrize("basis", [PointBasis, MultiscaleBasis])
def test_one_natural_step_on_all_rows_is_the_collapsed_optimum(basis):
    """SVI at its optimum equals VSGPR, for the same basis and hyper-parameters."""
    posterior, likelihood, x, y = make(basis)
    for parameter in posterior.parameters():
        parameter.requires_grad_(False)
    posterior.basis.locations.requires_grad_()
    learner = NaturalLearner(posterior, likelihood, learning_rate=1e-15, natural_rate=1.0)
    learner.step(x, y, n_total=N, iteration=1, rng=np.random.default_rng(0))
    functions = posterior.basis.at(posterior.kernel.base_kernel)
    solution = Collapsed(
        functions,
        posterior.kernel.outputscale,
        likelihood.noise.reshape(-1),
        x,
        y,
        torch.tensor(float(N), dtype=torch.float64),
    )
    q = posterior.measure()
    assert_allclose(number(elbo(q, likelihood, x, y)), number(solution.bound()), rtol=1e-6)
    assert_allclose(q.mean(x).detach(), solution.mean().detach(), atol=1e-6)


def test_smaller_steps_on_all_rows_get_there_too():
    posterior, likelihood, x, y = make()
    start = number(elbo(posterior.measure(), likelihood, x, y))
    learner = NaturalLearner(posterior, likelihood, learning_rate=1e-15, natural_rate=0.3)
    bounds = [
        learner.step(x, y, n_total=N, iteration=1, rng=np.random.default_rng(0)).elbo
        for _ in range(60)
    ]
    assert bounds[0] == pytest.approx(start)
    assert bounds == sorted(bounds)
    rows = posterior.measure()
    learner.natural_rate = 1.0
    learner.step(x, y, n_total=N, iteration=1, rng=np.random.default_rng(0))
    assert_allclose(posterior.measure().mean(x).detach(), rows.mean(x).detach(), atol=1e-6)


@pytest.mark.parametrize("rate", [0.1, 1.0])
@pytest.mark.parametrize(
    "likelihood",
    [
        gpytorch.likelihoods.StudentTLikelihood(),
        gpytorch.likelihoods.LaplaceLikelihood(),
        gpytorch.likelihoods.GaussianLikelihood(),
    ],
)
def test_the_precision_stays_positive_semi_definite(rate, likelihood):
    """Also at the full step, with outliers, under a likelihood that is not log-concave."""
    posterior, _, x, y = make()
    y = y + 50 * (torch.rand(y.shape, generator=torch.Generator().manual_seed(0)) < 0.2)
    learner = NaturalLearner(posterior, likelihood.double(), learning_rate=0.1, natural_rate=rate)
    for k in range(30):
        result = learner.step(x, y, n_total=10**6, iteration=k + 1, rng=np.random.default_rng(k))
        assert np.isfinite(result.elbo)
        values = torch.linalg.eigvalsh(posterior.precision)
        assert (values >= -1e-9 * values.amax()).all()


def test_gradients_are_those_of_finite_differences():
    posterior, likelihood, x, y = make(MultiscaleBasis, m=3)
    parameters = [*posterior.parameters(), *likelihood.parameters()]

    def bound():
        return elbo(posterior.measure(), likelihood, x, y)

    assert_gradients(bound, parameters)


def test_a_steps_bound_is_the_bound_with_its_gradients():
    """The learner goes by way of whitened rows, prediction by way of V."""
    posterior, likelihood, x, y = make(MultiscaleBasis, m=3)
    learner = NaturalLearner(posterior, likelihood, learning_rate=0.1, natural_rate=0.1)
    parameters = [*posterior.parameters(), *likelihood.parameters()]
    rng = np.random.default_rng(0)

    def bound():
        return learner.look(posterior.measure(), x, y, len(x), rng).bound

    q = posterior.measure()
    mean, variance = q.marginals(x, q.whitened(x))
    assert_allclose(mean.detach(), q.mean(x).detach(), rtol=1e-9)
    assert_allclose(variance.detach(), q.variance(x).detach(), rtol=1e-9)
    assert bound().item() == pytest.approx(elbo(q, likelihood, x, y).item(), rel=1e-10)
    assert_gradients(bound, parameters)


def test_the_bound_never_exceeds_the_evidence():
    for seed in range(20):
        posterior, likelihood, x, y = make(MultiscaleBasis, seed)
        s = posterior.kernel.base_kernel.lengthscale.detach().numpy().ravel()
        K = dense.se_gram(x.numpy(), x.numpy(), s)
        evidence = sum(
            dense.log_evidence(
                float(posterior.kernel.outputscale[p]) * K,
                float(likelihood.noise[p]),
                y[:, p].numpy(),
            )
            for p in range(P)
        )
        assert number(elbo(posterior.measure(), likelihood, x, y)) <= evidence


def test_the_module_gives_gpytorch_distributions():
    posterior, _likelihood, x, _ = make()
    q = posterior.measure()
    diagonal, full = posterior(x), posterior(x, full_covariance=True)
    assert_allclose(diagonal.mean.detach(), q.mean(x).T.detach())
    assert_allclose(diagonal.variance.detach(), q.variance(x).T.detach(), atol=1e-9)
    assert_allclose(full.covariance_matrix.detach(), q.covariance(x).detach(), atol=1e-9)
