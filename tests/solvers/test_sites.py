"""Gaussian sites of other likelihoods: against finite differences, Gaussian noise and a dense optimum."""

import numpy as np
import pytest
import torch
from gpytorch.likelihoods import (
    BernoulliLikelihood,
    BetaLikelihood,
    GaussianLikelihood,
    LaplaceLikelihood,
    StudentTLikelihood,
)
from numpy.testing import assert_allclose

from decoupledgp.likelihoods import check_targets, expected_log_prob, log_marginal
from decoupledgp.solvers.sites import (
    Marginals,
    Sites,
    best_constant,
    calibrate_latent,
    fit_likelihood,
    sites_at,
)

RNG = np.random.default_rng(0)


def marginals(n=50, p=1):
    return (
        torch.tensor(RNG.standard_normal((n, p))),
        torch.tensor(RNG.uniform(0.05, 1, (n, p))),
    )


def labels(mean):
    return (torch.rand(mean.shape, generator=torch.Generator().manual_seed(0)) < 0.5).double()


def test_the_site_of_gaussian_noise_is_the_row_itself():
    likelihood = GaussianLikelihood().double()
    likelihood.noise = 0.3
    mean, variance = marginals(p=2)
    y = torch.tensor(RNG.standard_normal((50, 2)))
    found = sites_at(likelihood, mean, variance, y)
    assert_allclose(found.targets, y, atol=1e-10)
    assert_allclose(found.variances, 0.3, rtol=1e-6)


def test_sites_have_the_slopes_of_the_expected_log_likelihood():
    """In m and, by -2 ∂/∂v, the curvature: against differences of quadrature."""
    likelihood = BernoulliLikelihood()
    mean, variance = marginals()
    y = labels(mean)
    found = sites_at(likelihood, mean, variance, y)

    def value(m, v):
        return expected_log_prob(likelihood, m, v, y)

    step = 1e-5
    slope = (value(mean + step, variance) - value(mean - step, variance)) / (2 * step)
    curvature = -(value(mean, variance + step) - value(mean, variance - step)) / step
    assert_allclose((found.targets - mean) / found.variances, slope, rtol=0.01, atol=1e-6)
    assert_allclose(1 / found.variances, curvature, rtol=0.01)


@pytest.mark.parametrize("likelihood", [StudentTLikelihood(), LaplaceLikelihood()])
def test_outliers_and_kinks_have_sites_that_are_no_leap(likelihood):
    mean, variance = marginals(200)
    y = mean + 0.1 * torch.tensor(RNG.standard_normal((200, 1)))
    y[0], y[1] = 100.0, -100.0
    found = sites_at(likelihood.double(), mean, 1e-6 * variance, y)
    assert (found.variances > 0).all()
    assert torch.isfinite(found.targets).all()
    assert (found.targets - mean).abs().max() < 60


def test_a_variance_of_zero_is_no_trouble():
    mean, _ = marginals()
    found = sites_at(BernoulliLikelihood(), mean, torch.zeros_like(mean), labels(mean))
    assert torch.isfinite(found.targets).all()


def test_steps_are_between_the_sites_in_natural_parameters():
    one, other = (Sites(*marginals()) for _ in range(2))
    assert_allclose(one.towards(other, 0.0).targets, one.targets)
    assert_allclose(one.towards(other, 1.0).variances, other.variances)
    half = one.towards(other, 0.5)
    assert_allclose(1 / half.variances, 0.5 / one.variances + 0.5 / other.variances)


def test_the_best_constant_is_that_of_the_share_of_ones():
    y = (torch.arange(1000)[:, None] < torch.tensor([200, 500])).double()
    constant = best_constant(BernoulliLikelihood(), y, torch.ones(1000).double())
    assert constant[0] < -0.5
    assert abs(constant[1]) < 1e-3
    weights = torch.where(torch.arange(1000) < 200, 4.0, 1.0).double()  # as many ones as zeros
    assert abs(best_constant(BernoulliLikelihood(), y, weights)[0]) < 1e-3


def test_newton_rounds_reach_the_least_of_a_dense_bound():
    """The variational optimum of 30 rows: from sites, and by climbing on mean and full covariance."""
    n = 30
    x = RNG.uniform(-2, 2, (n, 1))
    K = torch.tensor(2 * np.exp(-0.5 * (x - x.T) ** 2) + 1e-6 * np.eye(n))
    y = torch.tensor((np.sin(2 * x) + 0.5 * RNG.standard_normal((n, 1)) > 0).astype(float))
    likelihood = BernoulliLikelihood()

    def bound(m, S):
        fit = expected_log_prob(likelihood, m, S.diagonal()[:, None], y).sum()
        solved = torch.linalg.solve(K, S)
        trace = solved.diagonal().sum() + (m * torch.linalg.solve(K, m)).sum()
        return fit - 0.5 * (trace - n - torch.logdet(solved))

    m, S = torch.zeros(n, 1).double(), K
    for _ in range(30):
        sites = sites_at(likelihood, m, S.diagonal()[:, None], y)
        gain = K @ torch.linalg.inv(K + torch.diag(sites.variances[:, 0]))
        m, S = gain @ sites.targets, K - gain @ K
    reached = float(bound(m, S))
    mean, root = (
        part.clone(memory_format=torch.contiguous_format).requires_grad_()
        for part in (m, torch.linalg.cholesky(S))
    )
    optimiser = torch.optim.LBFGS([mean, root], max_iter=200, line_search_fn="strong_wolfe")

    def closure():
        optimiser.zero_grad()
        lower = root.tril()
        loss = -bound(mean, lower @ lower.T)
        loss.backward()
        return loss

    optimiser.step(closure)
    assert -float(closure()) < reached + 1e-3


def test_the_likelihood_learns_from_rows():
    likelihood = StudentTLikelihood().double()
    mean, variance = marginals(3000)
    y = mean + 0.3 * torch.tensor(RNG.standard_t(6, (3000, 1)))
    before = expected_log_prob(likelihood, mean, 1e-4 * variance, y).mean()
    fit_likelihood(likelihood, Marginals(mean, 1e-4 * variance, y, torch.ones(3000).double()))
    assert expected_log_prob(likelihood, mean, 1e-4 * variance, y).mean() > before + 0.1
    assert 0.2 < likelihood.noise.sqrt().item() < 0.4


def test_the_factor_of_the_latent_variance_is_found():
    """Labels drawn with a fifth of the variance that is claimed, or with five times it."""
    for truth in (0.2, 5.0):
        mean, variance = torch.zeros(20000, 1).double() + 1, torch.ones(20000, 1).double()
        f = mean + (truth * variance).sqrt() * torch.tensor(RNG.standard_normal((20000, 1)))
        y = torch.tensor(RNG.random((20000, 1)) < BernoulliLikelihood()(f).probs.numpy()).double()
        likelihood = BernoulliLikelihood()
        rows = Marginals(mean, variance, y, torch.ones(20000).double())
        factor = calibrate_latent(likelihood, rows, likelihood_too=False)
        assert abs(np.log(factor.item() / truth)) < 0.3
    few = Marginals(*(part[:20] for part in rows))
    few = calibrate_latent(likelihood, few, likelihood_too=False)
    assert 0.1 < few.item() < 9


def test_log_marginals_are_integrals():
    likelihood = BetaLikelihood().double()
    mean, variance = marginals(5)
    y = torch.tensor(RNG.uniform(0.1, 0.9, (5, 1)))
    grid = torch.linspace(-8, 8, 4001).double()
    f = mean + variance.sqrt() * grid
    weight = torch.exp(-0.5 * grid**2) / np.sqrt(2 * np.pi) * (grid[1] - grid[0])
    density = torch.exp(likelihood(f).log_prob(y.expand_as(f)))
    found = log_marginal(likelihood, mean, variance, y)
    assert_allclose(found[:, 0].detach(), (density * weight).sum(1).log().detach(), rtol=1e-3)


def test_targets_without_a_density_are_named():
    for likelihood, good, bad in (
        (BernoulliLikelihood(), [0.0, 1.0], 2.0),
        (BernoulliLikelihood(), [0.0, 1.0], -1.0),
        (BetaLikelihood().double(), [0.2, 0.7], 1.0),
        (BetaLikelihood().double(), [0.2, 0.7], 1.5),
    ):
        y = torch.tensor(good * 5).double()[:, None]
        check_targets(likelihood, y)
        y[7] = bad
        with pytest.raises(ValueError, match=f"{bad:g} at row 7"):
            check_targets(likelihood, y)


def test_outliers_far_beyond_floating_point_have_a_log_marginal():
    """GPyTorch's own quadrature has log 0 there."""
    likelihood = LaplaceLikelihood().double()
    likelihood.noise = 1e-4
    mean, variance = torch.zeros(2, 1).double(), torch.full((2, 1), 1e-6).double()
    y = torch.tensor([[0.01], [50.0]]).double()
    found = log_marginal(likelihood, mean, variance, y).detach()
    assert_allclose(found[1], -50 / 0.01 - np.log(2 * 0.01), rtol=0.01)
    near = likelihood(mean).log_prob(y)[0].detach()
    assert_allclose(found[0], near, atol=0.02)
