"""A model in standardised units, its scales, its history: what an estimator knows once it has learnt."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from decoupledgp.data import Standardizer
from decoupledgp.estimators.history import append_thinned
from decoupledgp.estimators.prediction import Predictor
from decoupledgp.kernels import check_kernel, se_ard
from decoupledgp.likelihoods import check_likelihood, gaussian_likelihood, is_location_scale
from decoupledgp.posteriors import DecoupledPosterior, SharedPosterior
from decoupledgp.solvers.calibration import Calibration

__all__ = ["State"]

LARGEST_TARGET = 1e9
"""Standardised targets are clipped here, where squared errors are still far from float32's end."""


class State:
    """Posterior and likelihood with the scales around them; a subclass builds and changes them.

    `kernel` and `likelihood` are copied; None stands for SE-ARD and for Gaussian noise.
    """

    posterior: DecoupledPosterior | SharedPosterior
    likelihood: Likelihood

    def __init__(
        self,
        *,
        n_features: int,
        n_outputs: int,
        kernel: Kernel | None,
        likelihood: Likelihood | None,
        dtype: torch.dtype,
        device: torch.device,
    ):
        self.n_features, self.n_outputs = n_features, n_outputs
        self.given_kernel, self.given_likelihood = kernel, likelihood
        self.dtype, self.device = dtype, device
        self.history: list[dict[str, Any]] = []
        self.iteration, self.n_rows, self.seconds = 0, 0, 0.0
        self.n_unseen = 0
        self.x_scaler = Standardizer(np.zeros((1, n_features)))
        self.y_scaler = Standardizer(np.zeros((1, n_outputs)))
        self._predictor: Predictor | None = None
        self.calibration: Calibration | None = None
        if kernel is not None:
            check_kernel(kernel, n_features, n_outputs)
        if likelihood is not None:
            check_likelihood(likelihood, n_outputs)

    @property
    def has_learnt(self) -> bool:
        """Whether there is something to predict with."""
        return self.iteration > 0

    @property
    def standardises_targets(self) -> bool:
        """Whether targets are shifted and scaled before learning."""
        return is_location_scale(self.likelihood)

    def tensors(self, X: np.ndarray, Y: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return rows standardised, in the type and on the device of the model."""
        x = self.x_scaler.transform(X)
        y = self.y_scaler.transform(Y, LARGEST_TARGET) if self.standardises_targets else Y
        return tuple(torch.from_numpy(part).to(self.device, self.dtype) for part in (x, y))  # type: ignore[return-value]

    @property
    def n_total(self) -> int:
        """The N of the bound: the rows seen, and those of a table that stand for others already."""
        return self.n_rows + self.n_unseen

    def log_volume(self) -> float:
        """Return what a log-density of all rows' targets loses by returning to their own units."""
        return self.n_total * float(np.log(self.y_scaler.scale).sum())

    def predictor(self) -> Predictor:
        """Return the model ready to predict; built once after learning."""
        if self._predictor is None:
            self._predictor = Predictor(
                self.posterior, self.likelihood, self.x_scaler, self.y_scaler, self.calibration
            )
        return self._predictor

    def changed(self) -> None:
        """Say that the parameters are new ones."""
        self._predictor = None

    def record(self, elbo: float, nmse: float) -> dict[str, Any]:
        """Write a step down in the history; return what was written."""
        record = {
            "iteration": self.iteration,
            "seconds": self.seconds,
            "rows": self.n_rows,
            "elbo": elbo - self.log_volume(),
            "nmse": nmse,
            "n_mean_basis": self.posterior.n_mean,
            "n_cov_basis": self.posterior.n_cov,
        }
        append_thinned(self.history, record)
        return record

    def own_kernel(self) -> Kernel:
        """Return a copy of the given kernel, or a new SE-ARD kernel."""
        if self.given_kernel is None:
            return se_ard(self.n_features)
        return copy.deepcopy(self.given_kernel)

    def own_likelihood(self) -> Likelihood:
        """Return a copy of the given likelihood, or new Gaussian noise."""
        likelihood = self.given_likelihood
        if likelihood is None:
            likelihood = gaussian_likelihood(self.n_outputs)
        return copy.deepcopy(likelihood).to(self.device, self.dtype)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_predictor": None}
