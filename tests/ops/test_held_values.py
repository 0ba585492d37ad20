"""Values held while the prior moves: against dense Gaussians, gradients against finite differences."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from decoupledgp.ops import Held, RowGram, held_values

M, N, P = 4, 6, 2


def definite(rng, *shape):
    root = torch.tensor(rng.standard_normal(shape))
    return root @ root.mT + torch.eye(shape[-1])


@pytest.fixture
def case():
    rng = np.random.default_rng(0)
    K, cross = definite(rng, M, M), torch.tensor(rng.standard_normal((M, N)))
    mean, covariance = torch.tensor(rng.standard_normal((M, P))), definite(rng, P, M, M)
    return K, cross, torch.ones(P).double(), mean, covariance


def held_at(K, mean, covariance):
    """Return the values in the coordinates of K's Cholesky factor."""
    C = torch.linalg.cholesky(K)
    v = torch.linalg.solve_triangular(C, mean, upper=False)
    half = torch.linalg.solve_triangular(C, covariance, upper=False)
    S = torch.linalg.solve_triangular(C, half.mT, upper=False)
    return Held(*(part.detach() for part in (C, v, S, torch.logdet(S))))


def dense(K, cross, r, mean, covariance):
    """Return the same from the definitions, in the values' own coordinates."""
    explained, kl = [], 0
    for p in range(P):
        prior = r[p] ** 2 * K
        weights = np.linalg.solve(prior, r[p] * cross)
        explained.append(np.einsum("mn,mk,kn->n", weights, prior - covariance[p], weights))
        distance = np.linalg.solve(prior, np.outer(mean[:, p], mean[:, p]) + covariance[p])
        log_dets = np.linalg.slogdet(prior)[1] - np.linalg.slogdet(covariance[p])[1]
        kl += 0.5 * (np.trace(distance) - M + log_dets)
    means = [np.linalg.solve(r[p] ** 2 * K, r[p] * cross).T @ mean[:, p] for p in range(P)]
    return np.stack(means, 1), np.stack(explained, 1), kl


def test_values_are_those_of_the_dense_gaussians(case):
    K, cross, r, mean, covariance = case
    *found, gram = held_values(K, cross, r, held_at(K, mean, covariance))
    for one, other in zip(found, dense(*(part.numpy() for part in case)), strict=True):
        assert_allclose(one, other, rtol=1e-10, atol=1e-12)
    assert_allclose(torch.linalg.cholesky(K) @ gram.U, cross, rtol=1e-10)


def test_gradients_are_those_of_the_dense_gaussians(case):
    """K moves as a symmetric matrix, as it does by any kernel's parameters; u stays."""
    *prior, mean, covariance = case
    rng = np.random.default_rng(1)
    weights = [rng.standard_normal((N, P)), rng.standard_normal((N, P)), 1.3]

    def by_hand(K, cross, r):
        *parts, _ = held_values(K, cross, r, held_at(K, mean, covariance))
        return sum(
            (torch.as_tensor(w) * part).sum() for w, part in zip(weights, parts, strict=True)
        )

    def expected(K, cross, r):
        parts = dense(K, cross, r, mean.numpy(), covariance.numpy())
        return sum((w * part).sum() for w, part in zip(weights, parts, strict=True))

    moving = [part.clone().requires_grad_() for part in prior]
    gradients = [g.numpy() for g in torch.autograd.grad(by_hand(*moving), moving)]
    for _ in range(20):
        steps = [1e-5 * rng.standard_normal(part.shape) for part in prior]
        steps[0] += steps[0].T
        ends = [
            expected(*(part.numpy() + sign * step for part, step in zip(prior, steps, strict=True)))
            for sign in (1, -1)
        ]
        change = sum((g * step).sum() for g, step in zip(gradients, steps, strict=True))
        assert_allclose(change, (ends[0] - ends[1]) / 2, rtol=1e-6)


def test_products_of_rows_are_kept_for_weights_in_proportion_only():
    rng = np.random.default_rng(2)
    U, weights = torch.tensor(rng.standard_normal((M, N))), torch.tensor(rng.uniform(1, 2, (N, P)))
    gram = RowGram(U)
    for factor in (torch.ones(P), torch.tensor([-2.0, 3.0])):
        products = gram(factor * weights)
        for p in range(P):
            assert_allclose(products[p], factor[p] * (U * weights[:, p]) @ U.T, rtol=1e-10)
    for other in (weights.square(), weights.flip(0), torch.zeros_like(weights), weights):
        for p, product in enumerate(gram(other)):
            assert_allclose(product, (U * other[:, p]) @ U.T, rtol=1e-10, atol=1e-12)
