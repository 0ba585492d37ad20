"""`DecoupledGPRegressor`: the decoupled Gaussian process behind scikit-learn's conventions."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import islice
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import torch
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_array, check_consistent_length, check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from decoupledgp.bases import BASES
from decoupledgp.bound import elbo
from decoupledgp.data import consecutive_batches, require_finite, shuffled_batches
from decoupledgp.estimators.run import Run
from decoupledgp.estimators.settings import resolve
from decoupledgp.posteriors import DecoupledPosterior
from decoupledgp.report.progress import progress

__all__ = ["DecoupledGPRegressor"]

_POSITIVE = [Interval(Integral, 1, None, closed="left"), None]
_COUNT = [Interval(Integral, 0, None, closed="left"), None]


class DecoupledGPRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Gaussian process regression with separate bases for mean and covariance, learnt online.

    The posterior mean has a large basis, which costs time and memory linear in its size; the
    posterior covariance has a small one, cubic in its size (Cheng & Boots, NIPS 2017). Several
    outputs share both bases. Inputs and targets are standardised inside.

    Parameters
    ----------
    n_mean_basis, n_cov_basis : int, default=None
        Sizes M_α and M_β of the two bases: 4096 and 128 by default. Never more than rows seen.
    family : {"decoupled"}, default="decoupled"
        The posterior family.
    kernel : gpytorch kernel, default=None
        The prior covariance of standardised targets over standardised inputs; None is SE-ARD.
        Length-scales that were not set are initialised by the median trick.
    basis : {"multiscale", "points"}, default=None
        Functions with length-scales of their own (SE-ARD kernel only, its default), or inducing
        points (any kernel).
    likelihood : gpytorch likelihood, default=None
        Any with one latent function; None is Gaussian noise with one variance per output. Targets
        are standardised if the likelihood is Gaussian, Student-t or Laplace, else left as they are.
    max_iter : int, default=None
        Minibatches that `fit` learns from: 300 by default.
    batch_size, basis_increment, kl_batch_size : int, default=None
        Rows per minibatch (1024), functions added per minibatch until the bases are full (128), and
        functions that estimate the mean's KL in each step (1024).
    learning_rate : float, default=None
        γ_0 of the schedule γ_0 / (1 + 0.1 √t): 0.1 by default, 1 at most.
    preconditioner : {"jacobi", "none"}, default="jacobi"
        How a and L are parametrised.
    partially_shared : bool, default=False
        Whether the covariance basis is the first part of the mean basis too. With equal sizes this
        is the ordinary sparse GP with one basis.
    dtype : {"float32", "float64"}, default="float32"
        Type of the parameters and of the mean's training. The covariance part and all predictions
        are computed in float64.
    device : str, default=None
        PyTorch device to learn on; None is the CPU.
    random_state : int, RandomState instance or None, default=None
        Fixes the order of rows, the choice of functions and of the KL's columns: a run repeats
        exactly on the same machine.
    verbose : int, default=0
        1 shows a progress bar.
    callbacks : list of callables, default=None
        Each is called as `callback(model, record)` after every recorded step; `fit` stops when one
        returns True.
    preset : {None, "paper"}, default=None
        "paper" gives the paper's sizes for whatever is not given explicitly.

    Attributes
    ----------
    posterior_, likelihood_, kernel_ : torch modules
        The learnt model, in standardised units.
    history_ : list of dict
        Per recorded step: `iteration`, `seconds` since the start, `rows` seen, and the minibatch's
        estimates of `elbo` and `nmse` before the step.
    n_mean_basis_, n_cov_basis_ : int
        Sizes of the bases.
    n_rows_ : int
        Rows learnt from: the N that the bound is scaled to.
    n_iter_ : int
        Steps taken.

    Examples
    --------
    >>> import numpy as np
    >>> from decoupledgp import DecoupledGPRegressor
    >>> X = np.linspace(0, 6, 200)[:, None]
    >>> model = DecoupledGPRegressor(n_cov_basis=20, random_state=0).fit(X, np.sin(X[:, 0]))
    >>> mean, std = model.predict([[np.pi / 2]], return_std=True)
    >>> bool(abs(mean[0] - 1) < 0.1)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_mean_basis": _POSITIVE,
        "n_cov_basis": _COUNT,
        "family": [StrOptions({"decoupled"})],
        "kernel": [Kernel, None],
        "basis": [StrOptions(set(BASES)), None],
        "likelihood": [Likelihood, None],
        "max_iter": _POSITIVE,
        "batch_size": _POSITIVE,
        "basis_increment": _POSITIVE,
        "kl_batch_size": _POSITIVE,
        "learning_rate": [Interval(Real, 0, 1, closed="right"), None],
        "preconditioner": [StrOptions({"jacobi", "none"})],
        "partially_shared": ["boolean"],
        "dtype": [StrOptions({"float32", "float64"})],
        "device": [str, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
        "callbacks": [list, tuple, None],
        "preset": [StrOptions({"paper"}), None],
    }

    def __init__(
        self,
        n_mean_basis: int | None = None,
        n_cov_basis: int | None = None,
        *,
        family: str = "decoupled",
        kernel: Kernel | None = None,
        basis: str | None = None,
        likelihood: Likelihood | None = None,
        max_iter: int | None = None,
        batch_size: int | None = None,
        basis_increment: int | None = None,
        kl_batch_size: int | None = None,
        learning_rate: float | None = None,
        preconditioner: str = "jacobi",
        partially_shared: bool = False,
        dtype: str = "float32",
        device: str | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
        callbacks: Sequence[Callable[[Any, dict[str, Any]], Any]] | None = None,
        preset: str | None = None,
    ):
        self.n_mean_basis = n_mean_basis
        self.n_cov_basis = n_cov_basis
        self.family = family
        self.kernel = kernel
        self.basis = basis
        self.likelihood = likelihood
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.basis_increment = basis_increment
        self.kl_batch_size = kl_batch_size
        self.learning_rate = learning_rate
        self.preconditioner = preconditioner
        self.partially_shared = partially_shared
        self.dtype = dtype
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
        self.callbacks = callbacks
        self.preset = preset

    def fit(self, X: Any, y: Any) -> DecoupledGPRegressor:
        """Learn from all rows in shuffled minibatches, for `max_iter` of them, from scratch.

        Time O(max_iter · batch_size · M_α D). The rows are not copied. Ctrl-C leaves the model as it
        was after the last whole step, ready to predict.
        """
        X, Y = self._check_rows(X, y, reset=True)
        run, shuffle = self._begin(Y.shape[1])
        run.open_table(len(X))
        batches = shuffled_batches(len(X), run.settings.batch_size, shuffle)
        with progress(run.settings.max_iter, bool(self.verbose)) as advance:
            for index in islice(batches, run.settings.max_iter):
                record = run.learn(X[index], Y[index], index)
                advance(record)
                if self._called_back(record):
                    break
        run.close_table()
        return self

    def partial_fit(self, X: Any, y: Any) -> DecoupledGPRegressor:
        """Go on learning from more rows, one step per `batch_size` of them; never starts over.

        Fed the minibatches that `fit` draws in its first pass, it ends at the same model. N grows
        by every row that comes, so a row shown twice counts twice. No row is kept (except the very
        first ones, until there are 32).
        """
        first = not hasattr(self, "_run")
        X, Y = self._check_rows(X, y, reset=first)
        run = self._begin(Y.shape[1])[0] if first else self._run
        run.close_table()
        for part in consecutive_batches(len(X), run.settings.batch_size):
            if self._called_back(run.learn(X[part], Y[part])):
                break
        return self

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """Return the predictive mean, and the standard deviation or covariance of y if asked for.

        Noise is included. Shapes follow y: (n,) or (n, P); a covariance is (n, n) or (n, n, P).
        Rows are worked through in blocks: memory beyond the result does not grow with n, except
        for the covariance. Time O(n M_α D), plus O(n P M_β²) for the standard deviation.
        """
        if return_std and return_cov:
            raise RuntimeError("ask for one of return_std and return_cov, not for both")
        check_is_fitted(self)
        X, predictor = self._check_inputs(X), self._run.predictor()
        if return_cov:
            mean, cov = predictor.joint(X)
            return self._shaped(mean), cov[..., 0] if self._y_is_flat else cov
        mean, std = predictor.marginals(X, std=return_std)
        return (self._shaped(mean), self._shaped(std)) if return_std else self._shaped(mean)

    def sample_y(
        self, X: Any, n_samples: int = 1, random_state: int | np.random.RandomState | None = 0
    ) -> np.ndarray:
        """Return joint draws of y at X: (n, n_samples), or (n, P, n_samples) for several outputs.

        Time O(n³) and memory O(n²) per output: for a few thousand rows.
        """
        check_is_fitted(self)
        X, predictor = self._check_inputs(X), self._run.predictor()
        return self._shaped(predictor.sample(X, n_samples, check_random_state(random_state)))

    def elbo(self, X: Any, y: Any) -> float:
        """Return the variational bound with these rows in place of the training rows.

        (N/n) Σ E_q[log p(y | f)] - KL, with N the rows learnt from: on test rows, the held-out bound
        that the paper reports. Densities are of y in its own units; several outputs are summed.
        Time O(n M_α D + M_α² D).
        """
        check_is_fitted(self)
        X, Y = self._check_rows(X, y, reset=False)
        run = self._run
        with torch.no_grad():
            q = run.posterior.measure()
            bound = elbo(q, run.likelihood, *run.tensors(X, Y), n_total=run.n_rows)
        return float(bound) - run.log_volume()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one safetensors file: what it knows, and how it goes on learning."""
        from decoupledgp.storage import save

        check_is_fitted(self)
        save(self, path)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        kernel: Kernel | None = None,
        likelihood: Likelihood | None = None,
    ) -> DecoupledGPRegressor:
        """Read a model that `save` wrote; its predictions are the same to the last bit.

        A kernel or likelihood that is none of GPyTorch's plain ones cannot be rebuilt from a file
        without code: pass one of the same structure, its parameters come from the file.
        """
        from decoupledgp.storage import load

        return load(cls, path, kernel=kernel, likelihood=likelihood)

    @property
    def posterior_(self) -> DecoupledPosterior:
        """The learnt posterior."""
        return self._run.posterior

    @property
    def likelihood_(self) -> Likelihood:
        """The learnt likelihood."""
        return self._run.likelihood

    @property
    def kernel_(self) -> Kernel:
        """The learnt kernel ρ² g, with one scale per output."""
        return self._run.posterior.kernel

    @property
    def history_(self) -> list[dict[str, Any]]:
        """The recorded steps."""
        return self._run.history

    @property
    def n_mean_basis_(self) -> int:
        """Number of mean functions."""
        return self._run.posterior.n_mean

    @property
    def n_cov_basis_(self) -> int:
        """Number of covariance functions."""
        return self._run.posterior.n_cov

    @property
    def n_rows_(self) -> int:
        """Number of rows learnt from."""
        return self._run.n_rows

    @property
    def n_iter_(self) -> int:
        """Number of steps taken."""
        return self._run.iteration

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_run")

    def _begin(self, n_outputs: int) -> tuple[Run, np.random.Generator]:
        """Start a run from the constructor's arguments; also return the generator of row orders."""
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        learning, shuffling = np.random.default_rng(seed).spawn(2)
        self._run = Run(
            resolve(self.get_params(deep=False)),
            n_features=self.n_features_in_,
            n_outputs=n_outputs,
            kernel=self.kernel,
            likelihood=self.likelihood,
            preconditioner=self.preconditioner,
            partially_shared=self.partially_shared,
            dtype=getattr(torch, self.dtype),
            device=torch.device(self.device or "cpu"),
            rng=learning,
        )
        return self._run, shuffling

    def _check_rows(self, X: Any, y: Any, *, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return rows as finite float arrays (n, D) and (n, P), or raise one clear error."""
        self._check_arguments()
        X = self._check_inputs(X, reset=reset)
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None"
            )
        Y = check_array(y, ensure_2d=False, ensure_all_finite=False, input_name="y", estimator=self)
        check_consistent_length(X, Y)
        if Y.dtype.kind in "mM":
            raise ValueError("y holds dates or durations; turn them into numbers, such as days")
        require_finite(Y, "y")
        if Y.ndim == 2 and Y.shape[1] == 0:
            raise ValueError("y has no columns; give at least one target")
        if reset:
            self._y_is_flat = Y.ndim == 1
        Y = np.asarray(Y, dtype=np.float64).reshape(len(X), -1)
        if not reset and Y.shape[1] != self._run.n_outputs:
            raise ValueError(f"y has {Y.shape[1]} outputs; the model has {self._run.n_outputs}")
        return X, Y

    def _check_inputs(self, X: Any, *, reset: bool = False) -> np.ndarray:
        """Return inputs as a finite float array (n, D), or raise one clear error."""
        if reset or not self._is_plain_table(X):  # the check takes as long as one row's prediction
            X = validate_data(
                self, X, reset=reset, dtype=[np.float64, np.float32], ensure_all_finite=False
            )
        require_finite(X, "X", getattr(self, "feature_names_in_", None))
        return X

    def _is_plain_table(self, X: Any) -> bool:
        """Whether scikit-learn's check would return X as it is, without a word."""
        return (
            type(X) is np.ndarray
            and X.dtype in (np.float64, np.float32)
            and X.ndim == 2
            and len(X) > 0
            and X.shape[1] == self.n_features_in_
            and not hasattr(self, "feature_names_in_")
        )

    def _check_arguments(self) -> None:
        """Check the constructor's arguments, also what scikit-learn's table cannot say."""
        self._validate_params()
        if not all(callable(callback) for callback in self.callbacks or ()):
            raise ValueError(f"callbacks must be functions. Got {self.callbacks!r}")
        name = self.device or "cpu"
        if not _is_device(name):
            raise ValueError(f"device must be one that PyTorch has here. Got {name!r}")

    def _shaped(self, table: np.ndarray) -> np.ndarray:
        """Give results the shape of y: (n, P, ...) becomes (n, ...) if y was flat."""
        return table[:, 0] if self._y_is_flat else table

    def _called_back(self, record: dict[str, Any]) -> bool:
        """Call the callbacks; return whether one asks to stop."""
        return any([callback(self, record) is True for callback in self.callbacks or ()])


def _is_device(name: str) -> bool:
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError):
        return False
    return True
