"""scikit-learn's exact GP on as many rows as the time allows.

ARD squared-exponential kernel with a scale, plus white noise; several outputs share all of it. Its
hyper-parameters are learnt on 256 random rows, then on 512, and so on, each time from where the last
left off, until three quarters of the time are gone or the derivatives of the kernel matrix would not
fit in memory. What is left of the time goes into conditioning on up to four times as many rows, at
fixed hyper-parameters: the cost of one Cholesky factor. (On many more rows than they were learnt from
they are overconfident: with no limit, in a trial of 21 seconds on pol, 95% intervals covered 70%.)
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from scipy.optimize import minimize
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel, WhiteKernel

from benchmarks.peers.scores import Prediction
from benchmarks.tables import Split

__all__ = ["exact_kernel", "predict_by_clock"]

FIRST_ROWS = 256
MOST_ROWS = 16_384
MOST_BYTES = 2e9
"""Of the kernel matrix's derivatives, one matrix per hyper-parameter."""
LEARNING = 0.75
"""Share of the time for the hyper-parameters."""
MOST_TIMES = 4
"""Rows conditioned on, over rows that the hyper-parameters were learnt from, at most."""
FEWEST_EVALUATIONS = 20
"""Hyper-parameters are learnt on more rows only if this many evaluations fit the time left."""
TEST_BATCH = 1024


def exact_kernel(inputs: int) -> Kernel:
    """Return the kernel of the exact GP with its starting values, for standardised data."""
    scales = np.full(inputs, 0.5 * inputs**0.5)
    return ConstantKernel(1.0, (1e-3, 1e3)) * RBF(scales, (1e-2, 1e3)) + WhiteKernel(
        0.1, (1e-6, 1e1)
    )


def predict_by_clock(
    split: Split, fold: int, clock: float, times: Sequence[float]
) -> Iterator[Prediction]:
    """Yield predictions after each multiple of `clock` seconds, each from a run of its own."""
    for multiple in sorted(times):
        start = time.perf_counter()
        model, rows = _climb(split, fold, start, multiple * clock)
        seconds = time.perf_counter() - start
        mean, std = _predict(model, split.X_test)
        yield Prediction(multiple, mean, std, seconds=seconds, extra={"rows": rows})


def _climb(
    split: Split, fold: int, start: float, seconds: float
) -> tuple[GaussianProcessRegressor, int]:
    """Return the model, conditioned on as many rows as the time allows, and how many they are."""
    order = np.random.default_rng(fold).permutation(len(split.X_train))
    kernel, rows = exact_kernel(split.X_train.shape[1]), min(FIRST_ROWS, len(order))
    most = min(MOST_ROWS, len(order))
    learnt = start + LEARNING * seconds
    while True:
        optimizer = _Optimizer(learnt)
        model = _fit(kernel, split, order[:rows], optimizer)
        kernel, more = model.kernel_, min(2 * rows, most)
        late = time.perf_counter() + FEWEST_EVALUATIONS * 8 * optimizer.seconds_each() > learnt
        if late or more == rows or more**2 * (len(kernel.theta) + 1) * 8 > MOST_BYTES:
            break
        rows = more
    most = min(MOST_TIMES * rows, most)
    fixed = 8 * optimizer.seconds_each()  # more than one factor costs: the derivatives are in it
    while rows < most and time.perf_counter() + fixed < start + seconds:
        rows, begun = min(2 * rows, most), time.perf_counter()
        model = _fit(kernel, split, order[:rows], None)
        fixed = 8 * (time.perf_counter() - begun)
    return model, rows


def _fit(
    kernel: Kernel, split: Split, rows: np.ndarray, optimizer: Callable | None
) -> GaussianProcessRegressor:
    model = GaussianProcessRegressor(kernel, optimizer=optimizer, copy_X_train=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an optimiser that the clock stopped has not converged
        return model.fit(split.X_train[rows].astype(np.float64), split.y_train[rows])


class _Optimizer:
    """L-BFGS-B that the clock stops."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.seconds = 0.0
        self.evaluations = 0

    def seconds_each(self) -> float:
        """Return the mean seconds of one evaluation with its gradient."""
        return self.seconds / max(self.evaluations, 1)

    def __call__(
        self, objective: Callable, theta: np.ndarray, bounds: np.ndarray
    ) -> tuple[np.ndarray, float]:
        """Return the best hyper-parameters seen and their loss, as scikit-learn asks for."""
        best = (theta, np.inf)

        def evaluate(theta: np.ndarray) -> tuple[float, np.ndarray]:
            nonlocal best
            begun = time.perf_counter()
            value, gradient = objective(theta)
            self.seconds += time.perf_counter() - begun
            self.evaluations += 1
            if value < best[1]:
                best = (theta.copy(), value)
            return value, gradient

        def stop(theta: np.ndarray) -> None:
            if time.perf_counter() > self.deadline:
                raise StopIteration

        minimize(evaluate, theta, jac=True, bounds=bounds, method="L-BFGS-B", callback=stop)
        return best


def _predict(model: GaussianProcessRegressor, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    parts = [X[i : i + TEST_BATCH].astype(np.float64) for i in range(0, len(X), TEST_BATCH)]
    means, deviations = zip(*(model.predict(part, return_std=True) for part in parts), strict=True)
    return (
        np.concatenate([mean.reshape(len(mean), -1) for mean in means]),
        np.concatenate([std.reshape(len(std), -1) for std in deviations]),
    )
