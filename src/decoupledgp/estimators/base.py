"""What all estimators share: predictions, draws, the bound, files, checks of what comes in."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_array, check_consistent_length, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from decoupledgp.bound import elbo
from decoupledgp.data import require_finite
from decoupledgp.estimators.state import State
from decoupledgp.posteriors import DecoupledPosterior, SharedPosterior

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["GPRegressor"]


class GPRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """A Gaussian process behind scikit-learn's conventions; how it learns is for the subclasses.

    Every one of them ends with a posterior whose measure answers the same questions, so everything
    after learning is the same for all.
    """

    _run: State
    n_features_in_: int
    random_state: int | np.random.RandomState | None
    device: str | None
    callbacks: Sequence[Callable[[Any, dict[str, Any]], Any]] | None

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

    def predict_interval(
        self, X: Any, coverage: float = 0.95, conformal: bool | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return lower and upper ends of intervals that hold y with this probability.

        Where rows were held out (`calibration_`), the width is the one that this share of them needed, in
        standard deviations: it holds for exchangeable rows, whatever the distribution, up to what the
        model gained by learning from them later. If they are too few for that (99.9% of 100), it is the
        normal distribution's, or that of the worst of them if that is more. Without held-out rows, and with
        `conformal=False`, it is the normal distribution's. `conformal=True` is strict: it raises without
        held-out rows, and the ends are infinite if they are too few.
        """
        if not 0 < coverage < 1:
            raise ValueError(f"coverage must be between 0 and 1. Got {coverage!r}")
        check_is_fitted(self)
        calibration, normal = self._run.calibration, NormalDist().inv_cdf(0.5 + coverage / 2)
        width: Any = normal
        if calibration is None and conformal:
            raise ValueError(
                "conformal intervals need rows that were held out; this model has none "
                '(DecoupledGPRegressor with solver="sweeps" and over 1,024 rows does)'
            )
        if calibration is not None and (conformal is None or conformal):
            width = calibration.quantile(coverage)
            if conformal is None:
                too_few = np.maximum(calibration.scores[-1], normal)
                width = np.where(np.isfinite(width), width, too_few)
            width = width[0] if self._y_is_flat else width
        mean, std = self.predict(X, return_std=True)
        return mean - width * std, mean + width * std

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
        Time O(n M_α D + M_α² D); memory does not grow with n beyond the rows.
        """
        check_is_fitted(self)
        X, Y = self._check_rows(X, y, reset=False)
        run = self._run
        with torch.no_grad():
            q = run.posterior.measure()
            bound = elbo(q, run.likelihood, *run.tensors(X, Y), n_total=run.n_total)
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
    ) -> Self:
        """Read a model that `save` wrote; its predictions are the same to the last bit.

        A kernel or likelihood that is none of GPyTorch's plain ones cannot be rebuilt from a file
        without code: pass one of the same structure, its parameters come from the file.
        """
        from decoupledgp.storage import load

        return load(cls, path, kernel=kernel, likelihood=likelihood)

    @property
    def posterior_(self) -> DecoupledPosterior | SharedPosterior:
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

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Leave the model as it was if learning ends with an error before anything was learnt."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            run = self.__dict__.get("_run")
            if run is None or run is before.get("_run") or not run.has_learnt:
                self.__dict__.clear()
                self.__dict__.update(before)
            raise

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_run")

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
        Y = np.require(Y, np.float64, ["C", "W"]).reshape(len(X), -1)  # as PyTorch wants them
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
