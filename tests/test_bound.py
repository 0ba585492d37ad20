"""The bound's pieces against the real GPyTorch, and its scaling."""

import gpytorch
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import dense
from decoupledgp.bound import elbo
from decoupledgp.likelihoods import expected_log_prob, predictive_moments
from decoupledgp.posteriors import kl_divergence
from models import KINDS, make_case


@pytest.mark.parametrize("kind", KINDS)
def test_gaussian_bound_in_closed_form(kind):
    case = make_case(kind, outputs=2)
    q = case.posterior.measure()
    mean, variance = q.mean(case.x).detach().numpy(), q.variance(case.x).detach().numpy()
    expected = -kl_divergence(q).item()
    for p in range(2):
        expected += dense.gaussian_elbo_data(
            case.y[:, p].numpy(), mean[:, p], variance[:, p], case.noise[p]
        )
    assert_allclose(elbo(q, case.likelihood, case.x, case.y).item(), expected, rtol=1e-10)


def test_minibatches_average_to_the_whole():
    case = make_case("multiscale", outputs=2)
    q = case.posterior.measure()
    whole = elbo(q, case.likelihood, case.x, case.y).item()
    halves = [
        elbo(q, case.likelihood, case.x[part], case.y[part], n_total=12).item()
        for part in (slice(0, 6), slice(6, 12))
    ]
    assert_allclose(np.mean(halves), whole, rtol=1e-12)


def test_a_posterior_is_a_prior():
    """With q itself as the prior the KL vanishes and only the likelihood is left."""
    case = make_case("multiscale")
    q = case.posterior.measure()
    likely = expected_log_prob(case.likelihood, q.mean(case.x), q.variance(case.x), case.y).sum()
    assert_allclose(
        elbo(q, case.likelihood, case.x, case.y, prior=q).item(), likely.item(), rtol=1e-10
    )


LIKELIHOODS = {
    "student": gpytorch.likelihoods.StudentTLikelihood,
    "laplace": gpytorch.likelihoods.LaplaceLikelihood,
    "bernoulli": gpytorch.likelihoods.BernoulliLikelihood,
    "poisson": gpytorch.likelihoods.PoissonLikelihood,
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_any_likelihood_through_its_expected_log_probability(name):
    """Against an integral on a fine grid; and the gradient reaches every parameter."""
    case = make_case("multiscale")
    likelihood = LIKELIHOODS[name]().double()
    y = {
        "bernoulli": (case.y > 0).double(),
        "poisson": case.y.abs().round(),
    }.get(name, case.y)
    q = case.posterior.measure()
    mean, variance = q.mean(case.x), q.variance(case.x)
    grid = torch.linspace(-9, 9, 4001, dtype=torch.float64)
    f = mean.detach()[:, 0] + grid[:, None] * variance.detach()[:, 0].sqrt()
    weight = torch.exp(-0.5 * grid**2)[:, None]
    log_p = likelihood(f).log_prob(y[:, 0])
    expected = (weight * log_p).sum(0) / weight.sum()
    assert_allclose(
        expected_log_prob(likelihood, mean, variance, y)[:, 0].detach(),
        expected.detach(),
        rtol=0.02,
        atol=0.02,
    )
    elbo(q, likelihood, case.x, y).backward()
    for parameter in case.posterior.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


@pytest.mark.parametrize("name", ["student", "laplace", "bernoulli", "poisson"])
def test_predictive_moments_equal_simulation(name):
    torch.manual_seed(0)
    likelihood = LIKELIHOODS[name]()
    if name == "student":
        likelihood.deg_free = 8.0
    mean, variance = torch.tensor([[0.3], [-1.0]]), torch.tensor([[0.2], [0.05]])
    got = predictive_moments(likelihood, mean, variance)
    f = mean[:, 0] + torch.randn(400_000, 2) * variance[:, 0].sqrt()
    draws = likelihood(f).sample()
    assert_allclose(got[0][:, 0], draws.mean(0), atol=0.02)
    assert_allclose(got[1][:, 0], draws.var(0), rtol=0.03)


def test_gpytorchs_likelihood_on_our_posterior():
    """`posterior(x)` is what a GPyTorch user's own loop needs."""
    case = make_case("multiscale", outputs=2)
    latent = case.posterior(case.x)
    assert latent.batch_shape == (2,)
    q = case.posterior.measure()
    direct = case.likelihood.expected_log_prob(case.y.T, latent).sum()
    ours = elbo(q, case.likelihood, case.x, case.y) + kl_divergence(q)
    assert_allclose(direct.item(), ours.item(), rtol=1e-12)
    full = case.posterior(case.x, full_covariance=True)
    assert_allclose(full.variance.detach(), latent.variance.detach(), rtol=1e-9)
    single = make_case("points").posterior
    assert single(case.x).batch_shape == ()
    assert single(case.x, full_covariance=True).covariance_matrix.shape == (12, 12)
