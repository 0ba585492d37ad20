"""Adam with a basis that grows under it."""

import numpy as np
import torch
from numpy.testing import assert_allclose

from decoupledgp.learners import GradientLearner, paper_schedule
from models import make_case


def learner_of(case, **options):
    options = {"learning_rate": 0.05, "kl_batch_size": 4, **options}
    return GradientLearner(case.posterior, case.likelihood, **options)


def step(learner, case, iteration=1, seed=0):
    rng = np.random.default_rng(seed)
    return learner.step(case.x, case.y, n_total=100, iteration=iteration, rng=rng)


def test_schedule_is_the_papers():
    assert paper_schedule(1, 0.1) == 0.1 / 1.1
    assert_allclose(paper_schedule(400, 0.1), 0.1 / 3)


def test_moments_grow_with_the_basis_and_old_ones_stay():
    case = make_case("multiscale", outputs=2)
    learner = learner_of(case)
    for t in range(1, 4):
        step(learner, case, t)
    before = {name: value.clone() for name, value in learner.moments().items()}
    case.posterior.add(case.x[:3], case.x[:2])
    learner.grow()
    after = learner.moments()
    assert before.keys() == after.keys()
    for name, old in before.items():
        new = after[name]
        corner = tuple(slice(n) for n in old.shape)
        assert torch.equal(new[corner], old), name
        rest = new.clone()
        rest[corner] = 0
        assert not rest.any(), name
    assert after["posterior.mean_coefficients.exp_avg"].shape == (9, 2)
    assert after["posterior.cov_factor.exp_avg"].shape == (2, 6, 6)


def test_old_entries_move_as_if_nothing_had_been_added():
    """One step on the full bound right after growing: old entries as without growing."""
    cases = [make_case("multiscale", outputs=2) for _ in range(2)]
    learners = [learner_of(case, kl_batch_size=10**6) for case in cases]
    for t in range(1, 4):
        for case, learner in zip(cases, learners, strict=True):
            step(learner, case, t)
    cases[1].posterior.add(cases[1].x[:3], cases[1].x[:2])
    learners[1].grow()
    for case, learner in zip(cases, learners, strict=True):
        step(learner, case, 4)
    plain = dict(cases[0].posterior.named_parameters())
    for name, grown in cases[1].posterior.named_parameters():
        old = plain[name]
        part = grown[tuple(slice(n) for n in old.shape)]
        assert_allclose(part.detach(), old.detach(), rtol=1e-9, atol=1e-12, err_msg=name)


def test_new_functions_are_learnt():
    """A new covariance function's factor is not stuck at its stationary point L = 0."""
    case = make_case("multiscale")
    learner = learner_of(case)
    case.posterior.add(case.x[:3], case.x[:2])
    learner.grow()
    for t in range(1, 20):
        step(learner, case, t)
    assert (case.posterior.mean_coefficients[6:].abs() > 1e-3).all()
    assert (case.posterior.cov_factor[0].diagonal()[4:].abs() > 1e-3).all()


def test_steps_climb():
    case = make_case("multiscale")
    learner = learner_of(case, kl_batch_size=10**6)
    bounds = [step(learner, case, t).elbo for t in range(1, 200)]
    assert bounds[-1] > bounds[0]
    assert np.mean(bounds[-10:]) > np.mean(bounds[:100])


def test_a_prior_posterior_holds_the_learner_back():
    """Yesterday's posterior as the prior: at q = prior the KL's gradient vanishes."""
    case = make_case("multiscale")
    with torch.no_grad():
        yesterday = case.posterior.measure()
    learner = learner_of(case, prior=yesterday, kl_batch_size=10**6)
    with_prior = step(learner, case).elbo
    other = make_case("multiscale")
    assert with_prior > step(learner_of(other, kl_batch_size=10**6), other).elbo
