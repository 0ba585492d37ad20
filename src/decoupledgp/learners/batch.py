"""Batch learning: nonlinear conjugate gradient, or L-BFGS, on a bound over all rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

__all__ = ["SOLVERS", "maximise"]

SOLVERS = {"cg": "CG", "lbfgs": "L-BFGS-B"}
"""SciPy's names of the solvers."""


def maximise(
    objective: Callable[[], Tensor],
    parameters: Sequence[nn.Parameter],
    *,
    solver: str,
    max_iter: int,
    after_step: Callable[[], bool],
) -> None:
    """Climb on `objective` in place; leave the parameters at the best values found.

    `after_step` is called after every iteration with the parameters at it, and stops the climb by
    returning True. A point at which the objective does not exist (a matrix that is not positive
    definite, an overflow, parameters that a distribution refuses) is treated as worse than all others.
    On an exception, Ctrl-C included, the best values so far stay.
    """
    from scipy.optimize import minimize

    if not parameters:
        return
    start = _vector(parameters)
    best, worst = _Best(np.inf, start), [1.0]

    def negative(vector: np.ndarray) -> tuple[float, np.ndarray]:
        _assign(vector, parameters)
        try:
            value = objective()
            grads = torch.autograd.grad(-value, list(parameters))
        except torch.linalg.LinAlgError:
            return worst[0], np.zeros_like(vector)
        except ValueError:  # a distribution refuses parameters that have underflowed
            if np.isinf(best.loss):  # it is not the step that is wrong
                raise
            return worst[0], np.zeros_like(vector)
        loss, gradient = -float(value.detach()), _flat(grads)
        if not (np.isfinite(loss) and np.isfinite(gradient).all()):
            return worst[0], np.zeros_like(vector)
        worst[0] = max(worst[0], 10 * abs(loss))
        if loss < best.loss:
            best.loss, best.vector = loss, vector.copy()
        return loss, gradient

    def stepped(vector: np.ndarray) -> None:
        _assign(vector, parameters)
        if after_step():
            raise _Stop

    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # line searches warn about every step they cut short
            minimize(
                negative,
                start,
                jac=True,
                method=SOLVERS[solver],
                callback=stepped,
                options={"maxiter": max_iter},
            )
    except _Stop:
        pass
    finally:
        _assign(best.vector, parameters)


@dataclass
class _Best:
    """The best point so far."""

    loss: float
    vector: np.ndarray


class _Stop(Exception):  # noqa: N818
    """A callback asked to stop."""


def _vector(parameters: Sequence[nn.Parameter]) -> np.ndarray:
    return parameters_to_vector(parameters).detach().double().cpu().numpy().copy()


def _flat(tensors: Sequence[Tensor]) -> np.ndarray:
    return torch.cat([tensor.reshape(-1) for tensor in tensors]).double().cpu().numpy()


@torch.no_grad()
def _assign(vector: np.ndarray, parameters: Sequence[nn.Parameter]) -> None:
    vector_to_parameters(torch.from_numpy(vector.copy()).to(parameters[0]), parameters)
