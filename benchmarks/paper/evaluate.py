"""What is measured: the error and the bound on test rows, at the end and along the way."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from decoupledgp.likelihoods import expected_log_prob
from decoupledgp.report.metrics import coverage, gaussian_nll, nmse

__all__ = ["Curve", "held_out_bound", "point_scores", "scores"]

BLOCK = 8192
"""Rows at once, so that K_Xβ stays small."""


def held_out_bound(model: Any, X: np.ndarray, Y: np.ndarray, n_train: int) -> np.ndarray:
    """Return (N/n) Σ E_q[log p(y | f)] - KL per output, with N the training rows of the experiment.

    The batch systems learn from fewer rows than N: like the paper, this scales the likelihood to N
    for them too (`model.elbo` scales to the rows learnt from). Densities are of Y in its own units.
    """
    run, Y = model._run, Y.reshape(len(X), -1)
    total = np.zeros(Y.shape[1])
    with torch.no_grad():
        q = run.posterior.measure(double=True)
        for start in range(0, len(X), BLOCK):
            part = slice(start, start + BLOCK)
            x, y = (rows.double() for rows in run.tensors(np.asarray(X[part]), Y[part]))
            likely = expected_log_prob(run.likelihood, q.mean(x), q.variance(x), y)
            total += likely.double().reshape(len(x), -1).sum(0).numpy()
        if Y.shape[1] == 1:
            kl = np.array([float(q.kl())])
        else:
            kl = np.array([float(q.output(p).kl()) for p in range(Y.shape[1])])
    return n_train * (total / len(X) - np.log(run.y_scaler.scale)) - kl


def scores(model: Any, X: np.ndarray, Y: np.ndarray, n_train: int) -> list[dict[str, Any]]:
    """Return the scores of one of our models on test rows, one entry per output."""
    Y = Y.reshape(len(X), -1)
    mean, std = (table.reshape(Y.shape) for table in model.predict(X, return_std=True))
    bounds = held_out_bound(model, X, Y, n_train)
    return [
        {
            **point_scores(Y[:, p], mean[:, p], std[:, p]),
            "bound": float(bounds[p]),
        }
        for p in range(Y.shape[1])
    ]


def point_scores(y: np.ndarray, mean: np.ndarray, std: np.ndarray | None) -> dict[str, float]:
    """Return what predictions of one output score; without deviations only the error."""
    result = {"nmse": nmse(y, mean)}
    if std is not None:
        result |= {"nll": gaussian_nll(y, mean, std), "coverage": coverage(y, mean, std)}
    return result


class Curve:
    """A callback that looks at a model now and then, and knows the time that learning alone took."""

    def __init__(self, X: np.ndarray, y: np.ndarray, n_train: int, marks: list[int]):
        self.X, self.y, self.n_train, self.marks = X, y, n_train, set(marks)
        self.points: list[dict[str, float]] = []
        self._spent, self._start = 0.0, time.perf_counter()

    @property
    def seconds(self) -> float:
        """Time since the start without the looking."""
        return time.perf_counter() - self._start - self._spent

    def __call__(self, model: Any, record: dict[str, Any]) -> None:
        """Write down bound and error if it is time to."""
        if record["iteration"] not in self.marks:
            return
        seconds, begun = self.seconds, time.perf_counter()
        bound = float(held_out_bound(model, self.X, self.y, self.n_train)[0])
        error = nmse(self.y, model.predict(self.X))
        point = {"iteration": record["iteration"], "seconds": seconds, "nmse": error}
        self.points.append({**point, "bound": bound})
        self._spent += time.perf_counter() - begun
