"""GPyTorch's variational GPs: SVGP with Adam, SVGP with natural gradients, orthogonally decoupled.

All three have an ARD squared-exponential kernel with a scale, a constant mean, learnt inducing points
that start at random rows, single precision, and one training loop: minibatches drawn at random until
the clock stops it. A reading at once the given time and one at five times come from the same run; the
seconds of a reading are not counted. Several outputs share kernel and inducing points and have a
variational distribution and a noise each.

How the settings were chosen: on kin40k fold 0, one thread, by the test scores, so that they favour the
peers, with 45 seconds of processor time for SVGP and 35 for the others. RMSE / NLL:

    SVGP, rate         0.01            0.03            0.1
    batch 256      0.491 / 0.68    0.377 / 0.53    0.414 / 0.69
    batch 1,024    0.555 / 0.80    0.347 / 0.46    0.425 / 0.69
    natural gradient, batch 1,024: rate 0.01 0.241 / 0.20, 0.03 0.250 / 0.18; batch 256, 0.03 0.276 / 0.23
    orthogonal, batch 1,024, 1,024 + 256 points: rate 0.01 0.314 / 0.36, 0.03 0.312 / 0.40;
        1,024 + 512, 0.03 0.370 / 0.63; 2,048 + 256, 0.01 0.345 / 0.46

Length-scales that start at √D/4 in place of √D/2 (SVGP, batch 1,024, 0.03, 35 seconds): 0.352 / 0.54.
The natural gradient's own rate of 0.1 and more inducing points were not varied, nor was a rate that
falls, because one run gives both readings. The machine was busy with other work, so that the numbers
of steps within the time differ, most for the orthogonal strategy (89 to 232).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import gpytorch
import numpy as np
import torch
from gpytorch.variational import (
    CholeskyVariationalDistribution,
    DeltaVariationalDistribution,
    NaturalVariationalDistribution,
    OrthogonallyDecoupledVariationalStrategy,
    VariationalStrategy,
)

from benchmarks.peers.scores import Prediction
from benchmarks.tables import Split

__all__ = ["NATURAL", "ORTHOGONAL", "SVGP", "Settings", "predict_by_clock", "seconds_of_steps"]

TEST_BATCH = 1024
START_NOISE = 0.1
NATURAL_RATE = 0.1


class Settings(NamedTuple):
    """What distinguishes one of these peers from another."""

    inducing: int = 1024
    """Inducing points; of the covariance only if `mean_points` is not 0."""
    mean_points: int = 0
    """Points that are the mean's alone (the orthogonally decoupled strategy)."""
    natural: bool = False
    """Natural gradients for the variational distributions instead of Adam."""
    batch: int = 1024
    rate: float = 0.01
    """Adam's, constant."""
    wide: float = 0.5
    """Length-scales start at this times √D (inputs are standardised)."""


SVGP = Settings(rate=0.03)
NATURAL = Settings(natural=True, rate=0.01)
ORTHOGONAL = Settings(inducing=256, mean_points=1024, rate=0.01)


class Model(gpytorch.models.ApproximateGP):
    """A GP with one variational distribution per output over shared inducing points."""

    def __init__(self, X: torch.Tensor, outputs: int, settings: Settings) -> None:
        shape = torch.Size([outputs])
        points = X[torch.randperm(len(X))[: settings.inducing + settings.mean_points]].clone()
        mine = points[: settings.inducing]
        kind = (
            NaturalVariationalDistribution if settings.natural else CholeskyVariationalDistribution
        )
        strategy = VariationalStrategy(self, mine, kind(len(mine), batch_shape=shape))
        if settings.mean_points:
            more = points[settings.inducing :] if len(points) > settings.inducing else mine.clone()
            delta = DeltaVariationalDistribution(len(more), batch_shape=shape)
            strategy = OrthogonallyDecoupledVariationalStrategy(strategy, more, delta)
        super().__init__(strategy)
        self.mean_module = gpytorch.means.ConstantMean()
        rbf = gpytorch.kernels.RBFKernel(ard_num_dims=X.shape[1])
        rbf.lengthscale = settings.wide * X.shape[1] ** 0.5
        self.covar_module = gpytorch.kernels.ScaleKernel(rbf)
        self.covar_module.outputscale = 1.0

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        """Return the prior at x; it is the same for every output."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class Training:
    """Model, likelihood and optimisers, one minibatch at a time."""

    def __init__(self, split: Split, fold: int, settings: Settings) -> None:
        torch.manual_seed(fold)
        self.X, self.Y = (torch.from_numpy(part).float() for part in (split.X_train, split.y_train))
        outputs = self.Y.shape[1]
        self.model = Model(self.X, outputs, settings)
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood(batch_shape=torch.Size([outputs]))
        self.likelihood.noise = START_NOISE
        self.bound = gpytorch.mlls.VariationalELBO(self.likelihood, self.model, len(self.X))
        self.batch = min(settings.batch, len(self.X))
        learnt = [*self.model.parameters(), *self.likelihood.parameters()]
        self.optimizers: list[torch.optim.Optimizer] = []
        if settings.natural:
            q = list(self.model.variational_parameters())
            self.optimizers.append(gpytorch.optim.NGD(q, len(self.X), lr=NATURAL_RATE))
            learnt = [p for p in learnt if all(p is not other for other in q)]
        self.optimizers.append(torch.optim.Adam(learnt, lr=settings.rate))

    def step(self) -> None:
        """Take one step of every optimiser on a random minibatch."""
        rows = torch.randint(len(self.X), (self.batch,))
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss = -self.bound(self.model(self.X[rows]), self.Y[rows].T).sum()
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        if not torch.isfinite(loss):
            raise FloatingPointError("the bound is not finite")

    def predict(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation, noise included, of shape (n, P)."""
        self.model.eval()
        self.likelihood.eval()
        parts = []
        with torch.no_grad():
            for rows in torch.from_numpy(X).float().split(TEST_BATCH):
                y = self.likelihood(self.model(rows))
                parts.append(torch.stack([y.mean.mT, y.variance.sqrt().mT]))
        self.model.train()
        self.likelihood.train()
        mean, std = torch.cat(parts, 1).double().numpy()
        return mean, std

    def held_out_bound(self, split: Split) -> float:
        """Return (N/n) Σ E_q[log p(y | f)] - KL with the n test rows in place of the N learnt from."""
        self.model.eval()
        likely = 0.0
        with torch.no_grad():
            X, Y = (torch.from_numpy(part).float() for part in (split.X_test, split.y_test))
            for x, y in zip(X.split(TEST_BATCH), Y.split(TEST_BATCH), strict=True):
                likely += float(self.likelihood.expected_log_prob(y.T, self.model(x)).sum())
            kl = float(self.model.variational_strategy.kl_divergence().sum())
        self.model.train()
        return len(self.X) * likely / len(X) - kl


def predict_by_clock(
    split: Split, fold: int, clock: float, times: Sequence[float], settings: Settings
) -> Iterator[Prediction]:
    """Yield predictions after each multiple of `clock` seconds of one run of learning."""
    start = time.perf_counter()
    training = Training(split, fold, settings)
    spent, steps = time.perf_counter() - start, 0
    for multiple in sorted(times):
        while spent < multiple * clock:
            start = time.perf_counter()
            training.step()
            spent += time.perf_counter() - start
            steps += 1
        mean, std = training.predict(split.X_test)
        yield Prediction(multiple, mean, std, seconds=spent, extra={"steps": steps})


def seconds_of_steps(
    split: Split, fold: int, steps: int, warm: int, settings: Settings = SVGP
) -> float:
    """Return the mean seconds of a step, over `steps` steps after `warm` others."""
    training = Training(split, fold, settings)
    for _ in range(warm):
        training.step()
    start = time.perf_counter()
    for _ in range(steps):
        training.step()
    return (time.perf_counter() - start) / steps
