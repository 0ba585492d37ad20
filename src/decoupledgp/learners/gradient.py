"""Stochastic gradient ascent on the bound: Adam over every parameter (the paper's SVDGP)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from gpytorch.likelihoods import Likelihood
from jaxtyping import Float
from torch import Tensor, nn

from decoupledgp.bound import elbo
from decoupledgp.posteriors import DecoupledMeasure, DecoupledPosterior, SharedPosterior

__all__ = [
    "BoundNotFiniteError",
    "GradientLearner",
    "StepResult",
    "finite_bound",
    "nmse",
    "paper_schedule",
]


class BoundNotFiniteError(ValueError):
    """Targets outside a likelihood's support, or steps so long that the parameters have overflowed."""


class StepResult(NamedTuple):
    """What a step saw before it moved: the bound's estimate and the minibatch's normalised error."""

    elbo: float
    nmse: float


def paper_schedule(iteration: int, learning_rate: float) -> float:
    """Return γ_t = γ_0 / (1 + 0.1 √t)."""
    return learning_rate / (1 + 0.1 * math.sqrt(iteration))


class GradientLearner:
    """Moves a, L, both bases, the kernel and the likelihood together, one minibatch at a time.

    `kl_batch_size` columns of K_α, drawn anew each step, estimate the mean's part of the KL.
    The cost of a step is O(D M_α (n + |S|) + P M_β² (n + M_β)).
    """

    def __init__(
        self,
        posterior: DecoupledPosterior | SharedPosterior,
        likelihood: Likelihood,
        *,
        learning_rate: float,
        kl_batch_size: int,
        prior: DecoupledMeasure | None = None,
    ):
        self.model = nn.ModuleDict({"posterior": posterior, "likelihood": likelihood})
        self.posterior, self.likelihood = posterior, likelihood
        self.learning_rate, self.kl_batch_size, self.prior = learning_rate, kl_batch_size, prior
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=learning_rate)
        self.names = [name for name, _ in self.model.named_parameters()]

    def grow(self) -> None:
        """Take over parameters that became longer; Adam's moments of the old entries are kept.

        New entries start with zero moments. Adam counts steps per tensor, so its bias correction
        treats them as old, and for some tens of steps theirs are longer, up to about twice.
        """
        group = self.optimizer.param_groups[0]
        current = dict(self.model.named_parameters())
        for k, name in enumerate(self.names):
            old, new = group["params"][k], current[name]
            if old is new:
                continue
            group["params"][k] = new
            state = self.optimizer.state.pop(old, {})
            for key in ("exp_avg", "exp_avg_sq"):
                if key in state:
                    moment = torch.zeros_like(new)
                    moment[tuple(slice(n) for n in old.shape)] = state[key]
                    state[key] = moment
            if state:
                self.optimizer.state[new] = state

    def step(
        self,
        x: Float[Tensor, "n d"],
        y: Float[Tensor, "n p"],
        *,
        n_total: int,
        iteration: int,
        rng: np.random.Generator,
    ) -> StepResult:
        """Climb once on the bound's estimate from these rows, which stand for `n_total`."""
        q = self.posterior.measure()
        mean = q.mean(x)
        bound = elbo(
            q,
            self.likelihood,
            x,
            y,
            n_total=n_total,
            prior=self.prior,
            columns=self._columns(q, rng),
            mean=mean,
        )
        self.ascend(finite_bound(bound, self.likelihood), iteration)
        return StepResult(bound.item(), nmse(mean.detach(), y))

    def ascend(self, bound: Tensor, iteration: int) -> None:
        """Take Adam's step on the bound."""
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(-bound, parameters, allow_unused=True)
        self.climb(parameters, gradients, iteration)

    def climb(
        self,
        parameters: Sequence[nn.Parameter],
        gradients: Sequence[Tensor | None],
        iteration: int,
    ) -> None:
        """Take Adam's step in these parameters, against these gradients; all others stay."""
        self.optimizer.zero_grad()
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.param_groups[0]["lr"] = paper_schedule(iteration, self.learning_rate)
        self.optimizer.step()

    def moments(self) -> dict[str, Tensor]:
        """Return Adam's memory by parameter, for storage."""
        params = self.optimizer.param_groups[0]["params"]
        return {
            f"{name}.{key}": value
            for name, param in zip(self.names, params, strict=True)
            for key, value in self.optimizer.state.get(param, {}).items()
        }

    def load_moments(self, moments: dict[str, Tensor]) -> None:
        """Restore what `moments` returned."""
        params = self.optimizer.param_groups[0]["params"]
        for name, param in zip(self.names, params, strict=True):
            keys = ("step", "exp_avg", "exp_avg_sq")
            if f"{name}.step" in moments:
                self.optimizer.state[param] = {key: moments[f"{name}.{key}"] for key in keys}

    def _columns(self, q: DecoupledMeasure, rng: np.random.Generator) -> Tensor | None:
        m = len(q.mean_functions) + (len(self.prior.alpha) if self.prior else 0)
        if m <= self.kl_batch_size:
            return None
        columns = rng.choice(m, self.kl_batch_size, replace=False, shuffle=False)
        return torch.from_numpy(columns).to(q.rho.device)


def finite_bound(bound: Tensor, likelihood: Likelihood) -> Tensor:
    """Return the bound, or raise an error if it is not finite."""
    if not torch.isfinite(bound):
        raise BoundNotFiniteError(
            f"{type(likelihood).__name__} gives these targets a log-likelihood that is not finite; "
            "check that y lies in its support, or choose another likelihood"
        )
    return bound


def nmse(mean: Tensor, y: Tensor) -> float:
    """Mean over outputs of squared error / variance; a constant target has the variance 1 it is scaled by."""
    variance = y.var(0, correction=0)
    variance = torch.where(variance > 0, variance, torch.ones_like(variance))
    return float(((mean - y).square().mean(0) / variance).mean())
