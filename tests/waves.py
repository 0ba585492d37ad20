"""Rows of a function of two inputs, and the default model of them, for tests of what users meet."""

from functools import lru_cache

import numpy as np

from decoupledgp import DecoupledGPRegressor


def rows(n, noise=0.1, seed=0, outputs=1):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, 2))
    Y = np.column_stack([np.sin(2 * X[:, 0]) * np.cos(X[:, 1] + k) for k in range(outputs)])
    Y = Y + noise * rng.standard_normal(Y.shape)
    return X, (Y[:, 0] if outputs == 1 else Y)


def truth(X):
    return np.sin(2 * X[:, 0]) * np.cos(X[:, 1])


def nmse(model, X):
    return np.mean((model.predict(X) - truth(X)) ** 2) / np.var(truth(X))


NEW, Y_NEW = rows(2000, seed=1)
X, Y = rows(4000)


@lru_cache
def fitted():
    return DecoupledGPRegressor(random_state=0).fit(X, Y)


def stream(model, X, y, size=100):
    for start in range(0, len(X), size):
        model.partial_fit(X[start : start + size], y[start : start + size])
    return model
