"""Naive dense references, written from the definitions with NumPy and no code of the package.

Everything is a joint Gaussian on finitely many points: the RKHS elements ψ_m, φ_x are represented by
their inner products, so a measure on (α ∪ β ∪ x) is N(m, S) with m = G[:, α] a and
S = G - G[:, β] (B⁻¹ + K_β)⁻¹ G[β, :], where G is the Gram matrix of all those elements.
"""

from __future__ import annotations

import numpy as np


def multiscale_gram(z1, l1, z2, l2):
    """Generalized SE-ARD kernel, pair by pair (appendix C.1)."""
    out = np.empty((len(z1), len(z2)))
    for i in range(len(z1)):
        for j in range(len(z2)):
            total = l1[i] ** 2 + l2[j] ** 2
            factor = np.prod(np.sqrt(2 * l1[i] * l2[j] / total))
            out[i, j] = factor * np.exp(-np.sum((z1[i] - z2[j]) ** 2 / total))
    return out


def se_gram(x1, x2, s):
    """SE-ARD kernel of scale 1."""
    difference = (x1[:, None, :] - x2[None, :, :]) / s
    return np.exp(-0.5 * np.sum(difference**2, axis=-1))


def matern_gram(x1, x2, s):
    """Matérn 5/2 kernel of scale 1."""
    r = np.sqrt(5 * np.sum(((x1[:, None] - x2[None]) / s) ** 2, axis=-1))
    return (1 + r + r**2 / 3) * np.exp(-r)


def rational_quadratic_gram(x1, x2, s, alpha):
    """Rational quadratic kernel of scale 1."""
    squares = np.sum(((x1[:, None] - x2[None]) / s) ** 2, axis=-1)
    return (1 + squares / (2 * alpha)) ** -alpha


def middle(B, K):
    """(B⁻¹ + K)⁻¹ without needing B invertible: B (I + K B)⁻¹."""
    return B @ np.linalg.inv(np.eye(len(B)) + K @ B)


def moments(G, alpha, a, beta, B):
    """Mean and covariance of all elements in G; alpha and beta are index lists into it."""
    mean = G[:, alpha] @ a
    cov = G - G[:, beta] @ middle(B, G[np.ix_(beta, beta)]) @ G[beta, :]
    return mean, cov


def gaussian_kl(m0, S0, m1, S1):
    """KL[N(m0, S0) ‖ N(m1, S1)]."""
    difference = m1 - m0
    solve = np.linalg.solve(S1, np.column_stack([S0, difference]))
    trace, quadratic = np.trace(solve[:, :-1]), difference @ solve[:, -1]
    return 0.5 * (trace + quadratic - len(m0) + np.linalg.slogdet(S1)[1] - np.linalg.slogdet(S0)[1])


def gaussian_elbo_data(y, mean, variance, noise):
    """Σ E_{N(f | mean, variance)} log N(y | f, noise)."""
    return np.sum(-0.5 * np.log(2 * np.pi * noise) - ((y - mean) ** 2 + variance) / (2 * noise))


def log_evidence(K, noise, y):
    """log N(y | 0, K + noise I)."""
    C = K + noise * np.eye(len(y))
    return -0.5 * (y @ np.linalg.solve(C, y) + np.linalg.slogdet(C)[1] + len(y) * np.log(2 * np.pi))


def exact_posterior(K, K_star, k_star_star, noise, y):
    """Mean and covariance of f at new points under an exact GP."""
    solve = np.linalg.solve(K + noise * np.eye(len(y)), np.column_stack([y, K_star.T]))
    return K_star @ solve[:, 0], k_star_star - K_star @ solve[:, 1:]


def hensman_bound(K, K_xz, k_xx, m, S, noise, y):
    """Hensman's SVGP bound term by term: q(u) = N(m, S) on inducing values with prior N(0, K)."""
    A = np.linalg.solve(K, K_xz.T).T
    mean = A @ m
    variance = k_xx - np.sum(A * K_xz, axis=1) + np.sum((A @ S) * A, axis=1)
    return gaussian_elbo_data(y, mean, variance, noise) - gaussian_kl(m, S, np.zeros(len(m)), K)
