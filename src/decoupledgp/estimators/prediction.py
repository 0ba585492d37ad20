"""Predictions in the units of y, in bounded memory."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from decoupledgp.data import Standardizer
from decoupledgp.likelihoods import is_location_scale, predictive_moments
from decoupledgp.ops.threads import run_all
from decoupledgp.posteriors import DecoupledPosterior, SharedPosterior
from decoupledgp.solvers.calibration import Calibration

__all__ = ["Predictor"]

ROWS_AT_ONCE = 1024


class Predictor:
    """A posterior frozen at its present parameters, with everything that rows share computed once.

    Works in float64 whatever the model was learnt in, so that a prediction does not depend on which
    other rows it is asked for with.
    """

    @torch.no_grad()
    def __init__(
        self,
        posterior: DecoupledPosterior | SharedPosterior,
        likelihood: Likelihood,
        x_scaler: Standardizer,
        y_scaler: Standardizer,
        calibration: Calibration | None = None,
    ):
        self.q = posterior.measure(double=True)
        self.q.prepare()
        self.likelihood, self.x_scaler, self.y_scaler = likelihood, x_scaler, y_scaler
        self.calibration = calibration

    @torch.no_grad()
    def marginals(self, X: np.ndarray, *, std: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of y, each (n, P); the latter only if asked for."""
        mean = np.empty((len(X), self.q.n_outputs))
        deviation = np.zeros_like(mean)

        def fill(start: int) -> None:
            rows = slice(start, start + ROWS_AT_ONCE)
            x = self._tensor(X[rows])
            f_mean = self.q.mean(x)
            if not std and is_location_scale(self.likelihood):
                mean[rows] = f_mean.cpu()
                return
            y_mean, y_variance = self._moments(f_mean, self.q.variance(x))
            mean[rows], deviation[rows] = y_mean.cpu(), y_variance.sqrt().cpu()

        jobs = [partial(fill, start) for start in range(0, len(X), ROWS_AT_ONCE)]
        run_all(jobs, self.q.a.device, in_turn=not self.q.beta.parallel)
        return self.y_scaler.inverse(mean), deviation * self.y_scaler.scale

    @torch.no_grad()
    def joint(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean of y, (n, P), and its covariance over rows, (n, n, P)."""
        if not is_location_scale(self.likelihood):
            raise ValueError(
                f"{type(self.likelihood).__name__} has no closed-form covariance of y between rows; "
                "use return_std=True, or sample_y"
            )
        x = self._tensor(X)
        mean, covariance = self.q.mean(x), self.q.covariance(x)
        latent = covariance.diagonal(dim1=1, dim2=2)
        _, variance = self._moments(mean, latent.T.clamp_min(0))
        covariance = covariance * self._latent_factor[:, None, None]
        covariance.diagonal(dim1=1, dim2=2).copy_(variance.T)
        scaled = covariance.permute(1, 2, 0).cpu().numpy() * self.y_scaler.scale**2
        return self.y_scaler.inverse(mean.cpu().numpy()), scaled

    @torch.no_grad()
    def sample(self, X: np.ndarray, n_samples: int, rng: np.random.RandomState) -> np.ndarray:
        """Return joint draws of y, (n, P, n_samples): of f first, then of the noise."""
        x = self._tensor(X)
        factor = self._latent_factor[:, None, None]
        values, vectors = torch.linalg.eigh(factor * self.q.covariance(x))
        root = vectors * values.clamp_min(0).sqrt()[:, None]  # rounding makes small values negative
        normal = torch.from_numpy(rng.standard_normal((self.q.n_outputs, len(X), n_samples))).to(x)
        f = self.q.mean(x).T[..., None] + root @ normal
        if self.calibration is not None and self.calibration.noise is not None:
            deviation = torch.from_numpy(np.sqrt(self.calibration.noise))[:, None, None]
            y = f + deviation * torch.from_numpy(rng.standard_normal(f.shape))
            return self._draws(y.permute(1, 0, 2))
        with torch.random.fork_rng(devices=[x.device] if x.device.type == "cuda" else []):
            torch.manual_seed(rng.randint(np.iinfo(np.int32).max))
            y = self.likelihood(f.permute(2, 0, 1)).sample()
        return self._draws(y.permute(2, 1, 0))

    def _draws(self, y: Tensor) -> np.ndarray:
        """Return draws (n, P, n_samples) in the units of y."""
        scale, centre = self.y_scaler.scale[:, None], self.y_scaler.centre[:, None]
        return y.double().cpu().numpy() * scale + centre

    @property
    def _latent_factor(self) -> Tensor:
        """What the calibration multiplies the variance of f by."""
        if self.calibration is None:
            return torch.ones(self.q.n_outputs, dtype=torch.float64, device=self.q.a.device)
        return torch.from_numpy(self.calibration.latent)

    def _moments(self, mean: Tensor, latent: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of y for those of f."""
        latent = self._latent_factor * latent
        if self.calibration is None or self.calibration.noise is None:
            return predictive_moments(self.likelihood, mean, latent)
        return mean, latent + torch.from_numpy(self.calibration.noise)

    def _tensor(self, X: np.ndarray) -> Tensor:
        return torch.from_numpy(self.x_scaler.transform(X)).to(self.q.a.device, torch.float64)
