"""The shared family by the values' own natural parameters: against dense Gaussians."""

import pickle

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel
from gpytorch.likelihoods import BernoulliLikelihood
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from decoupledgp import IncrementalGPRegressor, SVGPRegressor
from decoupledgp.bases import MultiscaleBasis, PointBasis
from decoupledgp.bound import elbo
from decoupledgp.kernels import se_ard
from decoupledgp.learners import NaturalLearner
from decoupledgp.likelihoods import gaussian_likelihood
from decoupledgp.posteriors import SharedPosterior, ValuesPosterior, kl_divergence
from differences import assert_gradients

D, P, M, N = 2, 2, 5, 12
JITTER = 1e-8


def make(kind=ValuesPosterior, basis=PointBasis):
    rng = np.random.default_rng(0)
    kernel = se_ard(D).double()
    kernel.lengthscale = torch.tensor(rng.uniform(0.5, 1.5, (1, D)))
    functions = basis(torch.tensor(rng.uniform(-2, 2, (M, D))))
    posterior = kind(kernel, functions, n_outputs=P)
    root = torch.tensor(rng.standard_normal((P, M, M)))
    posterior.precision.copy_(root @ root.mT)
    posterior.shift.copy_(torch.tensor(rng.standard_normal((M, P))))
    likelihood = gaussian_likelihood(P).double()
    likelihood.noise = torch.tensor([[0.1], [0.3]])
    x, y = torch.tensor(rng.uniform(-2, 2, (N, D))), torch.tensor(rng.standard_normal((N, P)))
    return posterior, likelihood, x, y


def gram(posterior, p):
    """Return the prior covariance of an output's values at the functions."""
    K = posterior.basis.at(posterior.kernel.base_kernel).gram().detach().numpy()
    return float(posterior.kernel.outputscale[p]) * (K + JITTER * np.eye(len(K)))


def values(posterior, p):
    """Return mean and covariance of an output's values at the functions, dense."""
    q = posterior.measure()
    rho = float(q.rho[p])
    C = rho * q.cholesky_K.detach().numpy()
    S = np.linalg.inv(np.eye(len(C)) + q.precision[p].detach().numpy())
    return C @ S @ q.shift[:, p].detach().numpy(), C @ S @ C.T


def move(posterior):
    with torch.no_grad():
        posterior.basis.locations += 0.05 * torch.sin(7 * posterior.basis.locations)
        posterior.kernel.base_kernel.raw_lengthscale += 0.1
        posterior.kernel.raw_outputscale -= 0.2


@pytest.mark.parametrize("basis", [PointBasis, MultiscaleBasis])
def test_functions_that_stand_still_are_those_of_the_whitened_family(basis):
    ours, likelihood, x, y = make(basis=basis)
    other = make(SharedPosterior, basis)[0]
    one, two = ours.measure(), other.measure()
    for name in ("mean", "variance", "covariance"):
        assert_allclose(getattr(one, name)(x).detach(), getattr(two, name)(x).detach(), atol=1e-9)
    assert_allclose(kl_divergence(one).item(), kl_divergence(two).item(), rtol=1e-9)
    assert_allclose(
        elbo(one, likelihood, x, y).item(), elbo(two, likelihood, x, y).item(), rtol=1e-9
    )


def test_values_keep_their_distribution_while_functions_and_kernel_move():
    posterior, *_ = make()
    before = [values(posterior, p) for p in range(P)]
    move(posterior)
    for p in range(P):
        mean, covariance = values(posterior, p)
        assert_allclose(mean, before[p][0], rtol=1e-6)
        assert_allclose(covariance, before[p][1], rtol=1e-6, atol=1e-9)
    whitened = make(SharedPosterior)[0]
    move(whitened)
    assert np.abs(values(whitened, 0)[0] - before[0][0]).max() > 0.01


def test_gradients_are_those_with_the_values_held():
    posterior, likelihood, x, y = make()
    move(posterior)
    parameters = [*posterior.parameters(), *likelihood.parameters()]
    assert_gradients(
        lambda: elbo(posterior.measure(), likelihood, x, y), parameters, rtol=1e-5, atol=1e-4
    )


@pytest.mark.parametrize("basis", [PointBasis, MultiscaleBasis])
def test_gradients_by_hand_are_those_of_autograd(basis):
    posterior, likelihood, x, y = make(basis=basis)
    move(posterior)
    learner = NaturalLearner(posterior, likelihood, learning_rate=0.1, natural_rate=0.1)
    seen = learner.look(posterior.measure(), x, y, 40, np.random.default_rng(0))
    bound = elbo(posterior.measure(), likelihood, x, y, n_total=40)
    assert_allclose(seen.bound.item(), bound.item(), rtol=1e-9)
    parameters = [*posterior.parameters(), *likelihood.parameters()]
    ours, others = (torch.autograd.grad(value, parameters) for value in (seen.bound, bound))
    for one, other in zip(ours, others, strict=True):
        assert_allclose(one, other, rtol=1e-6, atol=1e-7 * float(other.abs().max()))


def test_growth_changes_nothing():
    posterior, likelihood, x, y = make()
    move(posterior)
    before = posterior.measure()
    kept = [before.mean(x), before.variance(x), before.kl(), elbo(before, likelihood, x, y)]
    posterior.add(x[:3], x[:3])
    after = posterior.measure()
    now = [after.mean(x), after.variance(x), after.kl(), elbo(after, likelihood, x, y)]
    for new, old in zip(now, kept, strict=True):
        assert_allclose(new.detach(), old.detach(), rtol=1e-5, atol=1e-6)


def test_a_natural_step_is_hensmans():
    """S⁻¹ and S⁻¹m go a share of the way to those of the minibatch, whatever moved before."""
    posterior, likelihood, x, y = make()
    move(posterior)
    before = [values(posterior, p) for p in range(P)]
    cross = posterior.basis.at(posterior.kernel.base_kernel).evaluate(x).detach().numpy()
    K = [gram(posterior, p) for p in range(P)]
    rho2, noise = posterior.kernel.outputscale.detach().numpy(), likelihood.noise.detach().numpy()
    for module in (posterior, likelihood):
        module.requires_grad_(False)
    posterior.basis.locations.requires_grad_()
    rate, n_total = 0.3, 40
    learner = NaturalLearner(posterior, likelihood, learning_rate=1e-12, natural_rate=rate)
    learner.step(x, y, n_total=n_total, iteration=1, rng=np.random.default_rng(0))
    for p in range(P):
        A = np.linalg.solve(K[p], rho2[p] * cross.T)
        m, S = before[p]
        scale = n_total / N / noise[p, 0]
        precision = np.linalg.inv(S)
        target = np.linalg.inv(K[p]) + scale * A @ A.T
        expected = (1 - rate) * precision + rate * target
        shift = (1 - rate) * precision @ m + rate * scale * A @ y[:, p].numpy()
        mean, covariance = values(posterior, p)
        assert_allclose(covariance, np.linalg.inv(expected), rtol=1e-4, atol=1e-7)
        assert_allclose(mean, np.linalg.solve(expected, shift), rtol=1e-4, atol=1e-6)


def test_the_estimator_learns_and_comes_back_from_a_file(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (400, 2))
    Y = np.column_stack([np.sin(2 * X[:, 0]), X[:, 1] ** 2])
    options = {"whitened": False, "max_iter": 100, "learning_rate": 0.05, "random_state": 0}
    model = SVGPRegressor(30, batch_size=100, basis_increment=10, **options).fit(X, Y)
    assert isinstance(model.posterior_, ValuesPosterior)
    assert np.mean((model.predict(X) - Y) ** 2) < 0.1 * np.var(Y)
    model.save(tmp_path / "model.gp")
    loaded = SVGPRegressor.load(tmp_path / "model.gp")
    for one in (model, loaded):
        one.partial_fit(X[:50], Y[:50])
    assert_array_equal(loaded.predict(X, return_std=True), model.predict(X, return_std=True))


def test_which_estimators_keep_the_values():
    def kind(model):
        return type(model.fit(np.arange(40.0)[:, None], np.arange(40.0)).posterior_)

    few = {"max_iter": 2, "preset": "paper"}
    assert kind(SVGPRegressor(5, **few)) is ValuesPosterior
    assert kind(SVGPRegressor(5, **few, whitened=True)) is SharedPosterior
    assert kind(SVGPRegressor(5, max_iter=2)) is SharedPosterior
    assert kind(IncrementalGPRegressor(5, **few)) is SharedPosterior


@pytest.mark.parametrize("natural_rate", [0.1, 1.0])
def test_other_kernels_and_likelihoods(natural_rate):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (100, 2))
    y = (X[:, 0] > 0).astype(float)
    options = {"kernel": MaternKernel(), "likelihood": BernoulliLikelihood(), "whitened": False}
    model = clone(SVGPRegressor(10, max_iter=5, natural_rate=natural_rate, **options)).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.predict(X, return_std=True), model.predict(X, return_std=True))


def test_steps_that_are_too_long_get_one_clear_error():
    posterior, *_ = make()
    posterior.precision.copy_(-2 * torch.eye(M).expand(P, M, M))
    for use in (lambda q: q.white, lambda q: q.observe(torch.zeros(1, D).double())):
        with pytest.raises(torch.linalg.LinAlgError, match="lower learning_rate"):
            use(posterior.measure())
    with pytest.raises(ValueError, match="use whitened=True"):
        _ = make()[0].measure().V
