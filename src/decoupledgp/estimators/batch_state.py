"""A model that learns from all its rows at once, by climbing on a bound whose posterior is solved for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from decoupledgp.bases import BASES, PointBasis
from decoupledgp.collapsed import Collapsed, Evidence
from decoupledgp.data import Standardizer
from decoupledgp.estimators.state import State
from decoupledgp.kernels import prior_diagonal
from decoupledgp.learners.batch import maximise
from decoupledgp.learners.gradient import nmse
from decoupledgp.online import initialise_hyperparameters
from decoupledgp.posteriors import DecoupledPosterior

__all__ = ["BatchState"]


class BatchState(State):
    """A posterior with one basis for mean and covariance, in float64; `basis=None` is the rows."""

    posterior: DecoupledPosterior
    likelihood: GaussianLikelihood

    def __init__(
        self,
        *,
        basis: str | None,
        n_features: int,
        n_outputs: int,
        kernel: Kernel | None,
        likelihood: GaussianLikelihood | None,
        device: torch.device,
    ):
        super().__init__(
            n_features=n_features,
            n_outputs=n_outputs,
            kernel=kernel,
            likelihood=likelihood,
            dtype=torch.float64,
            device=device,
        )
        self.basis = basis
        kind = PointBasis if basis is None else BASES[basis]
        no_rows = torch.empty(0, n_features, dtype=self.dtype, device=device)
        self.posterior = DecoupledPosterior(
            self.own_kernel(),
            kind(no_rows),
            kind(no_rows),
            n_outputs=n_outputs,
            mean_preconditioner="none",
            cov_preconditioner="none",
            partially_shared=True,
        )
        self.likelihood = self.own_likelihood()
        self.is_solved = False
        self.posterior.cov_basis.at(self.posterior.kernel.base_kernel)  # raises if they do not fit

    @property
    def has_learnt(self) -> bool:
        """Whether the posterior was solved for, be it with the kernel that learning began with."""
        return self.is_solved

    def learn(
        self,
        X: np.ndarray,
        Y: np.ndarray,
        chosen: np.ndarray,
        *,
        solver: str,
        max_iter: int,
        after_step: Callable[[dict[str, Any]], bool],
    ) -> None:
        """Learn from rows in their own units; the `chosen` ones are where basis functions begin.

        The model is ready to predict whenever `after_step` is called, and after a Ctrl-C.
        """
        start = time.perf_counter()
        self.n_rows = len(X)
        self.x_scaler, self.y_scaler = Standardizer(X), Standardizer(Y)
        x, y = self.tensors(X, Y)
        initialise_hyperparameters(self.posterior.kernel, self.likelihood, x, y)
        rows = x[torch.from_numpy(chosen).to(x.device)]
        self.posterior.add(rows, rows)
        self.posterior.cov_basis.requires_grad_(self.basis is not None)

        def stepped() -> bool:
            solution = self._solve(x, y)
            self.iteration += 1
            self.seconds = time.perf_counter() - start
            record = self.record(float(solution.bound()), nmse(solution.mean(), y))
            return after_step(record)

        try:
            maximise(
                lambda: self._solution(x, y).bound() / y.numel(),
                self._trainable(),
                solver=solver,
                max_iter=max_iter,
                after_step=stepped,
            )
        finally:
            self._solve(x, y)
            self.seconds = time.perf_counter() - start

    def _trainable(self) -> list[torch.nn.Parameter]:
        """Kernel, noise and basis; what is solved for is not learnt."""
        modules = (self.posterior.kernel, self.likelihood, self.posterior.cov_basis)
        return [p for module in modules for p in module.parameters() if p.requires_grad]

    def _solution(self, x: Tensor, y: Tensor) -> Collapsed | Evidence:
        """Return the bound with everything solved for, at the present parameters."""
        kernel = self.posterior.kernel
        functions = self.posterior.cov_basis.at(kernel.base_kernel)
        noise = self.likelihood.noise.reshape(-1).expand(self.n_outputs)
        if self.basis is None:
            return Evidence(functions, kernel.outputscale, noise, y)
        prior = prior_diagonal(kernel.base_kernel, x).sum()
        return Collapsed(functions, kernel.outputscale, noise, x, y, prior)

    @torch.no_grad()
    def _solve(self, x: Tensor, y: Tensor) -> Collapsed | Evidence:
        """Put the optimal coefficients for the present parameters into the posterior."""
        solution = self._solution(x, y)
        a, L = solution.coefficients()
        self.posterior.mean_coefficients.copy_(a)
        self.posterior.cov_factor.copy_(L)
        self.is_solved = True
        self.changed()
        return solution
