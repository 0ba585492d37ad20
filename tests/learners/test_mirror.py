"""Mirror ascent and projection: the closed forms against the general KL, and the limits."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from decoupledgp.bases import MultiscaleBasis, PointBasis
from decoupledgp.bound import elbo
from decoupledgp.collapsed import Evidence
from decoupledgp.kernels import se_ard
from decoupledgp.learners import MirrorLearner, NaturalLearner
from decoupledgp.learners.mirror import Target
from decoupledgp.learners.natural import Seen
from decoupledgp.likelihoods import gaussian_likelihood
from decoupledgp.ops import RowGram
from decoupledgp.posteriors import (
    DecoupledMeasure,
    SharedMeasure,
    SharedPosterior,
    kl_divergence,
)
from differences import assert_gradients

D, P, M, N, TOTAL, RATE = 2, 2, 4, 6, 30, 0.4


def make(basis=PointBasis, seed=0, locations=None):
    rng = np.random.default_rng(seed)
    x, y = torch.tensor(rng.uniform(-2, 2, (N, D))), torch.tensor(rng.standard_normal((N, P)))
    z = torch.tensor(rng.uniform(-2, 2, (M, D))) if locations is None else x
    posterior = SharedPosterior(se_ard(D).double(), basis(z), n_outputs=P)
    posterior.kernel.outputscale = torch.tensor(rng.uniform(0.5, 2, P))
    root = torch.tensor(rng.standard_normal((P, len(z), len(z))))
    posterior.precision.copy_(root @ root.mT)
    posterior.shift.copy_(torch.tensor(rng.standard_normal((len(z), P))))
    likelihood = gaussian_likelihood(P).double()
    likelihood.noise = torch.tensor(rng.uniform(0.1, 0.5, (P, 1)))
    return posterior, likelihood, x, y


def functions(posterior, basis=None):
    return (basis or posterior.basis).at(posterior.kernel.base_kernel).double()


def mirror_target(posterior, likelihood, x, y):
    """Return q̂ of one step as a `Target`, and written out as a decoupled measure on [β, X]."""
    q = posterior.measure()
    noise = likelihood.noise.detach().T
    mean = q.mean(x).detach()
    slopes = (y - mean) / noise, (-0.5 / noise).expand(N, P)
    seen = Seen(torch.zeros(()), mean, mean, *slopes, RowGram(q.whitened(x)))
    target = Target.of_step(q, functions(posterior), x, seen, TOTAL / N, RATE)
    joined = functions(posterior).join(functions(posterior, PointBasis(x)))
    K = joined.gram().detach()
    rho = q.rho.detach()
    weight = RATE * TOTAL / N
    L, a = torch.zeros(P, M + N, M + N, dtype=torch.float64), []
    for p in range(P):
        C = q.cholesky_K.detach()
        B_old = torch.linalg.solve(C.T, torch.linalg.solve(C.T, posterior.precision[p]).T)
        B = torch.zeros(M + N, M + N, dtype=torch.float64)
        B[:M, :M] = (1 - RATE) * B_old
        B[M:, M:] = weight * rho[p] ** 2 / noise[0, p] * torch.eye(N)
        old = q.a[:, p].detach()
        natural = (1 - RATE) * (old + B_old @ (K[:M, :M] @ old))
        c = torch.cat([natural, weight * rho[p] / noise[0, p] * y[:, p]])
        a.append(torch.linalg.solve(torch.eye(M + N) + B @ K, c))
        L[p] = torch.linalg.cholesky(B + 1e-14 * torch.eye(M + N))
    return target, DecoupledMeasure(posterior.kernel, joined, torch.stack(a, 1), joined, L)


def number(tensor):
    return float(tensor.detach())


@pytest.mark.parametrize("basis", [PointBasis, MultiscaleBasis])
def test_the_projection_is_the_minimum_of_the_general_kl(basis):
    posterior, *rest = make(basis)
    target, hat = mirror_target(posterior, *rest)
    shift, precision = (part.detach() for part in target.projected(functions(posterior)))
    own = functions(posterior)

    def divergence(shift, precision):
        return number(kl_divergence(SharedMeasure(posterior.kernel, own, shift, precision), hat))

    least = divergence(shift, precision)
    rng = np.random.default_rng(0)
    for size in (0.1, 0.01):
        for _ in range(5):
            moved = shift + size * torch.tensor(rng.standard_normal(shift.shape))
            assert divergence(moved, precision) > least
            root = torch.linalg.cholesky(precision)
            root = root + size * torch.tensor(rng.standard_normal(root.shape))
            assert divergence(shift, root @ root.mT) > least


def test_the_closeness_of_bases_is_the_general_kl_up_to_a_constant():
    posterior, *rest = make(MultiscaleBasis)
    target, hat = mirror_target(posterior, *rest)
    sums = []
    for seed in range(4):
        basis = make(MultiscaleBasis, seed)[0].basis
        own = functions(posterior, basis)
        q = SharedMeasure(posterior.kernel, own, *target.projected(own))
        sums.append(number(target.closeness(own)) + number(kl_divergence(q, hat)))
    assert_allclose(sums, sums[0], rtol=1e-6)


def test_with_a_basis_that_stands_still_it_is_the_natural_gradient():
    results = []
    for kind in (MirrorLearner, NaturalLearner):
        posterior, likelihood, x, y = make()
        posterior.basis.requires_grad_(False)
        learner = kind(posterior, likelihood, learning_rate=0.1, natural_rate=RATE)
        result = learner.step(x, y, n_total=TOTAL, iteration=1, rng=np.random.default_rng(0))
        state = posterior.state_dict() | likelihood.state_dict()
        results.append((result, state))
    assert results[0][0] == pytest.approx(results[1][0])
    for name, value in results[0][1].items():
        assert_allclose(value, results[1][1][name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_whole_step_on_all_rows_with_the_rows_as_basis_is_the_exact_gp():
    posterior, likelihood, x, y = make(locations="rows")
    for parameter in (*posterior.parameters(), *likelihood.parameters()):
        parameter.requires_grad_(False)
    learner = MirrorLearner(posterior, likelihood, learning_rate=0.1, natural_rate=1.0)
    posterior.kernel.raw_outputscale.requires_grad_()
    learner.learning_rate = 1e-15
    learner.step(x, y, n_total=N, iteration=1, rng=np.random.default_rng(0))
    noise = likelihood.noise.reshape(-1)
    exact = Evidence(functions(posterior), posterior.kernel.outputscale, noise, y)
    q = posterior.measure()
    assert_allclose(number(elbo(q, likelihood, x, y)), number(exact.bound()), rtol=1e-5)
    assert_allclose(q.mean(x).detach(), exact.mean().detach(), atol=1e-5)


def test_the_basis_moves_toward_the_target():
    posterior, likelihood, x, y = make(MultiscaleBasis)
    target, _ = mirror_target(posterior, likelihood, x, y)
    before = number(target.closeness(functions(posterior)))
    learner = MirrorLearner(posterior, likelihood, learning_rate=0.01, natural_rate=RATE)
    learner.step(x, y, n_total=TOTAL, iteration=1, rng=np.random.default_rng(0))
    posterior.kernel.load_state_dict(make(MultiscaleBasis)[0].kernel.state_dict())
    assert number(target.closeness(functions(posterior))) > before


def test_gradients_of_the_closeness_are_those_of_finite_differences():
    posterior, likelihood, x, y = make(MultiscaleBasis)
    target, _ = mirror_target(posterior, likelihood, x, y)
    parameters = list(posterior.basis.parameters())

    def closeness():
        return target.closeness(functions(posterior))

    target.old = functions(posterior, posterior.basis.take(torch.arange(M)))  # stays where it is
    assert_gradients(closeness, parameters)
