"""Algorithm 1: initialisation, growth from the same rows, and what is left alone."""

import gpytorch
import numpy as np
import torch
from numpy.testing import assert_allclose

from decoupledgp.bases import MultiscaleBasis
from decoupledgp.kernels import median_distance, scaled_kernel, se_ard
from decoupledgp.learners import GradientLearner
from decoupledgp.likelihoods import gaussian_likelihood
from decoupledgp.online import OnlineLearner, initialise_hyperparameters
from decoupledgp.posteriors import DecoupledPosterior

G = torch.Generator().manual_seed(0)
X = torch.randn(60, 3, generator=G)
Y = torch.randn(60, 2, generator=G) * torch.tensor([1.0, 2.0])


def online(n_mean=25, n_cov=10, increment=8, shared=False):
    posterior = DecoupledPosterior(
        se_ard(3),
        MultiscaleBasis(X[:0]),
        MultiscaleBasis(X[:0]),
        n_outputs=2,
        partially_shared=shared,
    )
    learner = GradientLearner(
        posterior, gaussian_likelihood(2), learning_rate=0.01, kl_batch_size=16
    )
    return OnlineLearner(
        learner,
        n_mean_basis=n_mean,
        n_cov_basis=n_cov,
        basis_increment=increment,
        rng=np.random.default_rng(0),
    )


def test_bases_grow_by_the_increment_until_they_are_full():
    for shared in (False, True):
        run = online(shared=shared)
        sizes = []
        for t in range(5):
            run.observe(X, Y, n_total=60 * (t + 1))
            sizes.append((run.learner.posterior.n_mean, run.learner.posterior.n_cov))
        assert sizes == [(8, 8), (16, 10), (24, 10), (25, 10), (25, 10)]


def test_both_bases_start_from_the_same_rows():
    run = online()
    run.learner.learning_rate = 1e-12
    _, lent = run.observe(X, Y, n_total=60)
    posterior = run.learner.posterior
    assert_allclose(posterior.mean_basis.locations.detach(), X[lent], atol=1e-6)
    assert_allclose(posterior.cov_basis.locations.detach(), X[lent], atol=1e-6)
    assert_allclose(posterior.mean_basis.multipliers.detach(), 1, atol=1e-6)


def test_only_candidates_are_lent():
    run = online()
    allowed = np.zeros(60, dtype=bool)
    allowed[[3, 7, 11]] = True
    _, lent = run.observe(X, Y, n_total=60, candidates=allowed)
    assert sorted(lent) == [3, 7, 11]
    _, lent = run.observe(X, Y, n_total=60, candidates=np.zeros(60, dtype=bool))
    assert len(lent) == 0


def test_hyperparameters_come_from_the_first_minibatch():
    kernel, likelihood = scaled_kernel(se_ard(3), 2), gaussian_likelihood(2)
    initialise_hyperparameters(kernel, likelihood, X, Y)
    assert_allclose(kernel.base_kernel.lengthscale.detach()[0], median_distance(X), rtol=1e-6)
    assert_allclose(kernel.outputscale.detach(), 1)
    assert_allclose(likelihood.noise.detach()[:, 0], Y.var(0, correction=0), rtol=1e-5)


def test_length_scales_can_be_those_of_single_features():
    x = X * torch.tensor([1.0, 3.0, 0.2])
    kernel = gpytorch.kernels.MaternKernel(ard_num_dims=2, active_dims=(0, 2))
    single = gpytorch.kernels.RBFKernel()
    initialise_hyperparameters(
        scaled_kernel(kernel + single, 2), None, x, Y, lengthscale_per_feature=True
    )
    expected = [median_distance(x[:, [d]]) for d in (0, 2)]
    assert_allclose(kernel.lengthscale.detach()[0], expected, rtol=1e-6)
    assert_allclose(single.lengthscale.item(), median_distance(x), rtol=1e-6)  # one for all


def test_values_that_a_user_set_are_kept():
    kernel = gpytorch.kernels.MaternKernel(ard_num_dims=3)
    kernel.lengthscale = 0.3
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    likelihood.noise = 0.05
    initialise_hyperparameters(scaled_kernel(kernel, 2), likelihood, X, Y)
    assert_allclose(kernel.lengthscale.detach(), 0.3, rtol=1e-6)
    assert_allclose(likelihood.noise.item(), 0.05, rtol=1e-6)


def test_every_part_of_a_composite_kernel_is_initialised_on_its_own_columns():
    first = gpytorch.kernels.RBFKernel(active_dims=(0,))
    second = gpytorch.kernels.MaternKernel(active_dims=(1, 2))
    kernel = scaled_kernel(first + second, 1)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    initialise_hyperparameters(kernel, likelihood, X, Y)
    assert_allclose(first.lengthscale.item(), median_distance(X[:, :1]), rtol=1e-6)
    assert_allclose(second.lengthscale.item(), median_distance(X[:, 1:]), rtol=1e-6)
    assert_allclose(likelihood.noise.item(), Y.var(0, correction=0).mean(), rtol=1e-5)
