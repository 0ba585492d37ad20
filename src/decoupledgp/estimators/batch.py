"""The batch systems of the paper's comparison: the exact GP, and Titsias' sparse GP."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import torch
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import GaussianLikelihood
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions

from decoupledgp.bases import BASES
from decoupledgp.estimators.base import GPRegressor
from decoupledgp.estimators.batch_state import BatchState
from decoupledgp.estimators.settings import default_basis
from decoupledgp.learners.batch import SOLVERS
from decoupledgp.report.progress import progress

__all__ = ["ExactGPRegressor", "SparseGPRegressor"]

_POSITIVE = [Interval(Integral, 1, None, closed="left"), None]

_SHARED: dict[str, list[Any]] = {
    "kernel": [Kernel, None],
    "likelihood": [GaussianLikelihood, None],
    "max_iter": _POSITIVE,
    "max_rows": _POSITIVE,
    "solver": [StrOptions(set(SOLVERS))],
    "device": [str, None],
    "random_state": ["random_state"],
    "verbose": ["verbose"],
    "callbacks": [list, tuple, None],
    "preset": [StrOptions({"paper"}), None],
}

Sizes = dict[str | None, dict[str, int | None]]
"""What an argument's None means, per preset. The paper gives sizes, and no number of iterations."""


class _BatchGPRegressor(GPRegressor):
    """Learns from all rows at once; only the bound and the basis differ."""

    _run: BatchState
    _sizes: ClassVar[Sizes]
    kernel: Kernel | None
    likelihood: GaussianLikelihood | None
    solver: str
    verbose: int
    preset: str | None

    def fit(self, X: Any, y: Any) -> Any:
        """Learn kernel, noise and basis by climbing on the bound; the posterior is solved for.

        Ctrl-C leaves the best model so far, ready to predict.
        """
        with self._all_or_nothing():
            X, Y = self._check_rows(X, y, reset=True)
            seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
            rng = np.random.default_rng(seed)
            X, Y = self._few_enough(X, Y, rng)
            state = BatchState(
                basis=self._basis(),
                n_features=self.n_features_in_,
                n_outputs=Y.shape[1],
                kernel=self.kernel,
                likelihood=self.likelihood,
                device=torch.device(self.device or "cpu"),
            )
            self._run = state
            max_iter = int(self._size("max_iter") or 1)
            with progress(max_iter, bool(self.verbose)) as advance:

                def stepped(record: dict[str, Any]) -> bool:
                    advance(record)
                    return self._called_back(record)

                state.learn(
                    X,
                    Y,
                    self._choose(len(X), rng),
                    solver=self.solver,
                    max_iter=max_iter,
                    after_step=stepped,
                )
        return self

    def _basis(self) -> str | None:
        """The kind of basis; None is the rows themselves."""
        return None

    def _choose(self, n_rows: int, rng: np.random.Generator) -> np.ndarray:
        """Return the rows at which basis functions begin."""
        return np.arange(n_rows)

    def _size(self, name: str) -> int | None:
        """Return an argument, or what its None stands for."""
        given = getattr(self, name)
        return self._sizes[self.preset][name] if given is None else int(given)

    def _few_enough(
        self, X: np.ndarray, Y: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        most = self._size("max_rows")
        if most is None or len(X) <= most:
            return X, Y
        warnings.warn(
            f"{type(self).__name__} learns from {most:,} random rows of {len(X):,}; a larger "
            "max_rows takes more, DecoupledGPRegressor takes all",
            stacklevel=3,
        )
        rows = np.sort(rng.choice(len(X), most, replace=False))
        return X[rows], Y[rows]


class ExactGPRegressor(_BatchGPRegressor):
    """The exact Gaussian process (the paper's GPR), for tables of a few thousand rows.

    Kernel and noise maximise the log evidence. Time per evaluation O(P n³ + n² D), memory O(P n²)
    in float64, for n rows and P outputs: the right tool for small tables, and the yardstick for the
    others.

    Parameters
    ----------
    kernel : gpytorch kernel, default=None
        The prior covariance of standardised targets over standardised inputs; None is SE-ARD.
    likelihood : gpytorch GaussianLikelihood, default=None
        Gaussian noise; None learns one variance per output.
    max_iter : int, default=None
        Iterations of the solver at most: 100 by default.
    max_rows : int, default=None
        Rows learnt from at most, chosen at random from more: 2,048 by default, the paper's 1,024
        with `preset="paper"`.
    solver : {"cg", "lbfgs"}, default="cg"
        Nonlinear conjugate gradient, as in the paper, or L-BFGS.
    device : str, default=None
        PyTorch device to learn on; None is the CPU.
    random_state : int, RandomState instance or None, default=None
        Fixes the choice of rows.
    verbose : int, default=0
        1 shows a progress bar.
    callbacks : list of callables, default=None
        Each is called as `callback(model, record)` after every iteration; `fit` stops when one
        returns True.
    preset : {None, "paper"}, default=None
        "paper" gives the paper's sizes for whatever is not given explicitly.

    Attributes
    ----------
    posterior_, likelihood_, kernel_ : torch modules
        The learnt model, in standardised units: a decoupled posterior whose one basis is the rows.
    history_ : list of dict
        Per iteration: `iteration`, `seconds`, `rows`, `elbo` (here the log evidence) and `nmse` on
        the rows.

    Examples
    --------
    >>> import numpy as np
    >>> from decoupledgp import ExactGPRegressor
    >>> X = np.linspace(0, 6, 50)[:, None]
    >>> model = ExactGPRegressor().fit(X, np.sin(X[:, 0]))
    >>> bool(abs(model.predict([[np.pi / 2]])[0] - 1) < 0.01)
    True
    """

    _sizes: ClassVar[Sizes] = {
        None: {"max_iter": 100, "max_rows": 2048},
        "paper": {"max_iter": 100, "max_rows": 1024},
    }
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = _SHARED

    def __init__(
        self,
        *,
        kernel: Kernel | None = None,
        likelihood: GaussianLikelihood | None = None,
        max_iter: int | None = None,
        max_rows: int | None = None,
        solver: str = "cg",
        device: str | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
        callbacks: Sequence[Callable[[Any, dict[str, Any]], Any]] | None = None,
        preset: str | None = None,
    ):
        self.kernel = kernel
        self.likelihood = likelihood
        self.max_iter = max_iter
        self.max_rows = max_rows
        self.solver = solver
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
        self.callbacks = callbacks
        self.preset = preset


class SparseGPRegressor(_BatchGPRegressor):
    """The sparse Gaussian process with inducing functions of Titsias 2009 (the paper's VSGPR).

    Kernel, noise and basis maximise the collapsed bound, in which the posterior is solved for. Time
    per evaluation O(n M² + P M³), memory O(n M + P M²) in float64, for n rows, M functions and P
    outputs: accurate where a few hundred functions suffice, and deterministic.

    Parameters
    ----------
    n_basis : int, default=None
        Functions M, for mean and covariance alike: 256 by default. Never more than rows.
    kernel : gpytorch kernel, default=None
        The prior covariance of standardised targets over standardised inputs; None is SE-ARD.
    basis : {"multiscale", "points"}, default=None
        Functions with length-scales of their own (SE-ARD kernel only, its default), or inducing
        points (any kernel).
    likelihood : gpytorch GaussianLikelihood, default=None
        Gaussian noise; None learns one variance per output.
    max_iter : int, default=None
        Iterations of the solver at most: 100 by default.
    max_rows : int, default=None
        Rows learnt from at most, chosen at random from more: all by default, the paper's 4,096 with
        `preset="paper"`.
    solver : {"cg", "lbfgs"}, default="cg"
        Nonlinear conjugate gradient, as in the paper, or L-BFGS.
    device : str, default=None
        PyTorch device to learn on; None is the CPU.
    random_state : int, RandomState instance or None, default=None
        Fixes the choice of rows and of functions.
    verbose : int, default=0
        1 shows a progress bar.
    callbacks : list of callables, default=None
        Each is called as `callback(model, record)` after every iteration; `fit` stops when one
        returns True.
    preset : {None, "paper"}, default=None
        "paper" gives the paper's sizes (1,024 functions, 4,096 rows) for whatever is not given.

    Attributes
    ----------
    posterior_, likelihood_, kernel_ : torch modules
        The learnt model, in standardised units: a decoupled posterior with one shared basis.
    history_ : list of dict
        Per iteration: `iteration`, `seconds`, `rows`, `elbo` (the collapsed bound) and `nmse` on the
        rows.

    Examples
    --------
    >>> import numpy as np
    >>> from decoupledgp import SparseGPRegressor
    >>> X = np.linspace(0, 6, 200)[:, None]
    >>> model = SparseGPRegressor(10, random_state=0).fit(X, np.sin(X[:, 0]))
    >>> bool(abs(model.predict([[np.pi / 2]])[0] - 1) < 0.01)
    True
    """

    _sizes: ClassVar[Sizes] = {
        None: {"max_iter": 100, "max_rows": None, "n_basis": 256},
        "paper": {"max_iter": 100, "max_rows": 4096, "n_basis": 1024},
    }
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_basis": _POSITIVE,
        "basis": [StrOptions(set(BASES)), None],
        **_SHARED,
    }

    def __init__(
        self,
        n_basis: int | None = None,
        *,
        kernel: Kernel | None = None,
        basis: str | None = None,
        likelihood: GaussianLikelihood | None = None,
        max_iter: int | None = None,
        max_rows: int | None = None,
        solver: str = "cg",
        device: str | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
        callbacks: Sequence[Callable[[Any, dict[str, Any]], Any]] | None = None,
        preset: str | None = None,
    ):
        self.n_basis = n_basis
        self.kernel = kernel
        self.basis = basis
        self.likelihood = likelihood
        self.max_iter = max_iter
        self.max_rows = max_rows
        self.solver = solver
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
        self.callbacks = callbacks
        self.preset = preset

    def _basis(self) -> str:
        return self.basis or default_basis(self.kernel)

    def _choose(self, n_rows: int, rng: np.random.Generator) -> np.ndarray:
        return rng.choice(n_rows, min(int(self._size("n_basis") or 1), n_rows), replace=False)
