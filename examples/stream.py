"""Learn from a stream that never ends: chunks in, predictions with error bars at any time."""

import numpy as np

from decoupledgp import DecoupledGPRegressor

rng = np.random.default_rng(0)
model = DecoupledGPRegressor(n_mean_basis=1000, n_cov_basis=50, random_state=0)


def chunk(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return joint angles of a two-link arm and the position of its hand, with noise."""
    q = rng.uniform(-np.pi, np.pi, (n, 2))
    hand = np.stack([np.cos(q[:, 0]) + np.cos(q.sum(1)), np.sin(q[:, 0]) + np.sin(q.sum(1))], 1)
    return q, hand + 0.05 * rng.standard_normal((n, 2))


X_test, Y_test = chunk(1000)
for k in range(1, 101):
    model.partial_fit(*chunk(256))
    if k % 25 == 0:
        mean, std = model.predict(X_test, return_std=True)
        inside = np.mean(np.abs(mean - Y_test) < 1.96 * std)
        print(
            f"{model.n_rows_:6d} rows, bases {model.n_mean_basis_}+{model.n_cov_basis_}: "
            f"R² {model.score(X_test, Y_test):.3f}, 95% intervals cover {inside:.1%}"
        )
