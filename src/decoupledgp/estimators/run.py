"""A model in training: rows in their own units go in, standardised minibatches reach the learner."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import numpy as np
import torch
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood

from decoupledgp.bases import BASES, Basis
from decoupledgp.data import Standardizer
from decoupledgp.estimators.interrupt import finish_first
from decoupledgp.estimators.settings import Settings
from decoupledgp.estimators.state import State
from decoupledgp.learners import GradientLearner, MirrorLearner, NaturalLearner, StepResult
from decoupledgp.likelihoods import check_targets
from decoupledgp.online import OnlineLearner
from decoupledgp.posteriors import (
    DecoupledPosterior,
    ResidualPosterior,
    SharedPosterior,
    ValuesPosterior,
)

__all__ = ["RUNS", "Run"]

WARM_UP_ROWS = 32
"""A stream that begins with fewer rows than this is begun again with each call until they are here:
scales and length-scales cannot be told from less. No other rows are ever kept."""


class Run(State):
    """Everything that learning online needs from one minibatch to the next, and nothing of the rows."""

    def __init__(
        self,
        settings: Settings,
        *,
        family: str,
        n_features: int,
        n_outputs: int,
        kernel: Kernel | None,
        likelihood: Likelihood | None,
        partially_shared: bool,
        dtype: torch.dtype,
        device: torch.device,
        rng: np.random.Generator,
    ):
        super().__init__(
            n_features=n_features,
            n_outputs=n_outputs,
            kernel=kernel,
            likelihood=likelihood,
            dtype=dtype,
            device=device,
        )
        self.settings, self.family, self.rng = settings, family, rng
        self.partially_shared = partially_shared
        self._first_rows: list[tuple[np.ndarray, np.ndarray, np.ndarray | None]] = []
        self._seen: np.ndarray | None = None
        self._lent: np.ndarray | None = None
        self._build()
        self.posterior.mean_basis.at(self.posterior.kernel.base_kernel)  # raises if they do not fit

    def open_table(self, n_rows: int) -> None:
        """Say that rows now come, by number and more than once, from a table of this many."""
        self._seen, self._lent = np.zeros(n_rows, dtype=bool), np.zeros(n_rows, dtype=bool)
        self.n_unseen = n_rows if self.settings.whole_table else 0

    def close_table(self) -> None:
        """Forget the table: further rows are new ones."""
        self._seen = self._lent = None

    def check(self, Y: np.ndarray) -> None:
        """Raise a ValueError if the likelihood has no density for some of these targets."""
        if not self.standardises_targets:
            check_targets(self.likelihood, torch.from_numpy(Y).to(self.device, self.dtype))

    def learn(
        self, X: np.ndarray, Y: np.ndarray, index: np.ndarray | None = None
    ) -> dict[str, Any]:
        """Take one step on a minibatch, given with its row numbers if a table is open."""
        with finish_first():
            start = time.perf_counter()
            result = self._step(X, Y, index)
            self.seconds += time.perf_counter() - start
            return self.record(result.elbo, result.nmse)

    def _build(self) -> None:
        """Make an empty model."""
        no_rows = torch.empty(0, self.n_features, dtype=self.dtype, device=self.device)
        basis = BASES[self.settings.basis]
        settings = self.settings
        self.likelihood = self.own_likelihood()
        learner = self._learner(basis(no_rows), basis(no_rows))
        self.posterior = learner.posterior
        self.online = OnlineLearner(
            learner,
            n_mean_basis=settings.n_mean_basis,
            n_cov_basis=min(settings.n_cov_basis, settings.n_mean_basis)
            if self.partially_shared
            else settings.n_cov_basis,
            basis_increment=settings.basis_increment,
            rng=self.rng,
            lengthscale_per_feature=settings.lengthscale_per_feature,
        )

    def _learner(self, mean_basis: Basis, cov_basis: Basis) -> GradientLearner:
        """Return an empty posterior in the hands of its learner."""
        posterior = DecoupledPosterior(
            self.own_kernel(),
            mean_basis,
            cov_basis,
            n_outputs=self.n_outputs,
            mean_preconditioner=self.settings.mean_preconditioner,
            cov_preconditioner=self.settings.cov_preconditioner,
            partially_shared=self.partially_shared,
        )
        return GradientLearner(
            posterior,
            self.likelihood,
            learning_rate=self.settings.learning_rate,
            kl_batch_size=self.settings.kl_batch_size,
        )

    def _step(self, X: np.ndarray, Y: np.ndarray, index: np.ndarray | None) -> StepResult:
        n_new = len(X) if self._seen is None else int((~self._seen[index]).sum())
        if n_new and self.n_rows < WARM_UP_ROWS:
            X, Y, index = self._begin_again(X, Y, index)
        self.n_rows += n_new
        if self._seen is not None:
            self._seen[index] = True
            self.n_unseen = max(self.n_unseen - n_new, 0)
        self.x_scaler.update(X)
        if self.standardises_targets:
            self.y_scaler.update(Y)
        candidates = None if self._lent is None else ~self._lent[index]
        result, lent = self.online.observe(
            *self.tensors(X, Y), n_total=self.n_total, candidates=candidates
        )
        if self._lent is not None and index is not None:
            self._lent[index[lent]] = True
        self.changed()
        self.iteration += 1
        return result

    def _begin_again(
        self, X: np.ndarray, Y: np.ndarray, index: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Start from all rows so far; keep them only while they are too few to start from."""
        first = [*self._first_rows, (X, Y, index)]
        X, Y = (
            np.ascontiguousarray(np.concatenate(parts))
            for parts in list(zip(*first, strict=True))[:2]
        )
        if index is not None:
            index = np.concatenate([numbers for *_, numbers in first if numbers is not None])
        self._first_rows = [
            (np.array(x), np.array(y), numbers)  # the caller may write to his arrays
            for x, y, numbers in first
            if len(X) < WARM_UP_ROWS
        ]
        self._build()
        if self._lent is not None:
            self._lent[:] = False
        self.x_scaler = Standardizer(X)
        if self.standardises_targets:
            self.y_scaler = Standardizer(Y)
        return X, Y, index


class SharedRun(Run):
    """A run with one basis for mean and covariance, by natural parameters, in float64."""

    learners: ClassVar[dict[str, type[NaturalLearner]]] = {
        "natural": NaturalLearner,
        "mirror": MirrorLearner,
    }

    def _learner(self, mean_basis: Basis, cov_basis: Basis) -> NaturalLearner:
        whitened = self.settings.whitened or self.family == "mirror"
        kind = SharedPosterior if whitened else ValuesPosterior
        posterior = kind(self.own_kernel(), mean_basis, n_outputs=self.n_outputs)
        return self.learners[self.family](
            posterior,
            self.likelihood,
            learning_rate=self.settings.learning_rate,
            natural_rate=self.settings.natural_rate,
        )


class ResidualRun(Run):
    """A run with a shared basis by natural parameters and a residual basis for the mean."""

    def _learner(self, mean_basis: Basis, cov_basis: Basis) -> NaturalLearner:
        posterior = ResidualPosterior(
            self.own_kernel(),
            mean_basis,
            cov_basis,
            orthogonal=self.family == "orthogonal",
            n_outputs=self.n_outputs,
            mean_preconditioner=self.settings.mean_preconditioner,
        )
        return NaturalLearner(
            posterior,
            self.likelihood,
            learning_rate=self.settings.learning_rate,
            natural_rate=self.settings.natural_rate,
            kl_batch_size=self.settings.kl_batch_size,
        )


RUNS: dict[str, type[Run]] = {
    "decoupled": Run,
    "hybrid": ResidualRun,
    "orthogonal": ResidualRun,
    "natural": SharedRun,
    "mirror": SharedRun,
}
"""The run of each posterior family and way to learn it."""
