"""What a solved model keeps of its rows, the posterior that follows from it, and how right it was."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.likelihoods import Likelihood
from jaxtyping import Float
from torch import Tensor

from decoupledgp.bases import Basis, PointBasis
from decoupledgp.estimators.state import State
from decoupledgp.kernels import prior_diagonal
from decoupledgp.posteriors import DecoupledPosterior
from decoupledgp.solvers import Cells, HeldOut, MeanProblem, Rows, calibrate, solve_covariance
from decoupledgp.solvers.neighbourhoods import coordinates
from decoupledgp.solvers.selection import choose
from decoupledgp.solvers.sweeps import product_by_rows

__all__ = ["Clock", "Follow", "Sizes", "SolvedModel", "Table"]

MOST_MEAN = 1 << 16
"""M_α by default, if there are as many rows."""

MOST_COV = 512
"""M_β by default, if there are more rows than the exact posterior takes."""

COV_ROWS, COV_ROWS_EACH = 1 << 16, 32
"""Rows that the covariance is computed from at most, and for each of its functions if that is more; each
stands for as many others as are left out."""

EXACT_ROWS = 1024
"""Up to so many rows the covariance has a function for each: the exact GP."""

HELD_OUT_MOST = 2000
"""Rows that calibrate the variances, at most."""

FEWEST_SCORES = 100
"""Residuals below which variances are left as the model has them."""

ROWS_AT_ONCE = 1024

Follow = Callable[[dict[str, Any]], bool]
"""Told of every step; a True ends the work."""


@dataclass(frozen=True)
class Sizes:
    """What the constructor was given; None is for us to choose."""

    n_mean_basis: int | None = None
    n_cov_basis: int | None = None
    max_seconds: float | None = None
    half_life: float | None = None
    warp_inputs: bool | None = None
    basis_choice: str = "random"
    choose_smoothness: bool = False
    """Whether the kernel is the squared exponential or a Matérn one, as the rows suggest."""


@dataclass
class Table:
    """Rows in their own units, and what is known of their noise.

    As a user gives it the variance is σ²/weight + known; inside, weights are relative to a typical one
    and it is (σ² + known)/weight, which can be kept for the rows of a cell together.
    """

    X: Float[np.ndarray, "n d"]
    Y: Float[np.ndarray, "n p"]
    weights: Float[np.ndarray, " n"]
    known: Float[np.ndarray, "n p"]

    @classmethod
    def plain(cls, X: Float[np.ndarray, "n d"], Y: Float[np.ndarray, "n p"]) -> Table:
        """Return rows that are all alike."""
        return cls(X, Y, np.broadcast_to(1.0, len(X)), np.broadcast_to(0.0, Y.shape))

    def __len__(self) -> int:
        return len(self.X)

    def take(self, index: np.ndarray | slice) -> Table:
        """Return some of the rows."""
        return Table(self.X[index], self.Y[index], self.weights[index], self.known[index])


class SolvedModel(State):
    """Cells, hyper-parameters and the solution for them, in float64."""

    posterior: DecoupledPosterior

    def __init__(
        self,
        sizes: Sizes,
        *,
        n_features: int,
        n_outputs: int,
        kernel: Kernel | None,
        likelihood: Likelihood | None,
        rng: np.random.Generator,
    ):
        super().__init__(
            n_features=n_features,
            n_outputs=n_outputs,
            kernel=kernel,
            likelihood=likelihood,
            dtype=torch.float64,
            device=torch.device("cpu"),
        )
        self.sizes, self.rng = sizes, rng
        self.cells = Cells(n_features, n_outputs)
        self.held_out = HeldOut.none(n_outputs)
        self.solved_rows, self.learnt_rows, self.joined_rows = 0, 0, 0
        self.weight_unit = 1.0
        self.grouped = False
        self.cov_bound = torch.zeros(n_outputs, dtype=self.dtype)
        self.cov_kl = torch.zeros(n_outputs, dtype=self.dtype)
        self.likelihood = self.own_likelihood()
        no_rows = torch.empty(0, n_features, dtype=self.dtype)
        self.install(PointBasis(no_rows), PointBasis(no_rows), self.own_kernel())
        self.posterior.mean_basis.at(self.posterior.kernel.base_kernel)  # raises if it does not fit

    def modules(self) -> torch.nn.ModuleDict:
        """Return everything with parameters."""
        return torch.nn.ModuleDict({"posterior": self.posterior, "likelihood": self.likelihood})

    @property
    def kernel(self) -> ScaleKernel:
        """The kernel with one scale per output."""
        return self.posterior.kernel

    @property
    def most_mean(self) -> int:
        """Mean functions there may be."""
        return self.sizes.n_mean_basis or MOST_MEAN

    def noise(self) -> Float[Tensor, " p"]:
        """The learnt variance of every output's noise, in standardised units."""
        return self.likelihood.noise.reshape(-1).expand(self.n_outputs).detach()

    def in_weight_units(self, table: Table) -> Table:
        """Return a user's rows with weights relative to the typical one of the first table."""
        weights = table.weights / self.weight_unit
        return Table(table.X, table.Y, weights, table.known * weights[:, None])

    def rows(self, table: Table) -> Rows:
        """Return rows in standardised units."""
        x, y = self.tensors(table.X, table.Y)
        scale = self.y_scaler.scale
        known = torch.from_numpy(table.known / scale / scale)  # its square may underflow
        return Rows(x, y, torch.from_numpy(np.array(table.weights)), known)

    def cell_rows(self) -> Rows:
        """Return the cells as rows, in standardised units."""
        cells = self.cells
        x, _ = self.tensors(cells.centres, cells.targets)
        y = torch.from_numpy(self.y_scaler.transform(cells.targets, np.inf))
        known = torch.from_numpy(cells.known / self.y_scaler.scale / self.y_scaler.scale)
        return Rows(x, y, torch.from_numpy(cells.counts), known)

    def relative_noise(self, rows: Rows) -> Float[Tensor, "n p"]:
        """Return the rows' noise over the kernel's scale."""
        return rows.noise(self.noise()) / self.kernel.outputscale.detach()

    def problem(self) -> MeanProblem:
        """Return the cells' system at the present hyper-parameters."""
        rows = self.cell_rows()
        return MeanProblem(
            functions=PointBasis(rows.x).at(self.kernel.base_kernel),
            centres=rows.x,
            targets=rows.y,
            noise=self.relative_noise(rows),
            coordinates=coordinates(self.kernel, rows.x),
        )

    @torch.no_grad()
    def rebuild(self, problem: MeanProblem) -> None:
        """Make a posterior with the cells' functions for the mean, and the optimal covariance."""
        if self.sizes.n_cov_basis is not None:
            n_cov = self.sizes.n_cov_basis
        else:
            n_cov = EXACT_ROWS if self.n_rows <= EXACT_ROWS else MOST_COV
        chosen = choose(
            self.kernel.base_kernel,
            problem.coordinates,
            problem.centres,
            n_cov,
            self.sizes.basis_choice,
            self.rng,
        )
        beta = PointBasis(problem.centres[torch.from_numpy(chosen)])
        self.install(PointBasis(problem.centres), beta, self.kernel)
        self.solve_covariance(problem)

    @torch.no_grad()
    def solve_covariance(self, problem: MeanProblem) -> None:
        """Set the optimal covariance on its present basis."""
        if problem.x is None or problem.row_noise is None:
            x, noise = problem.centres, problem.noise
        else:
            x, noise = problem.x, problem.row_noise
        base, n_cov = self.kernel.base_kernel, len(self.posterior.cov_basis)
        most = max(COV_ROWS, COV_ROWS_EACH * n_cov)
        if len(x) > most:  # all are in random order
            x, noise = x[:most], noise[:most] * (most / len(x))
        beta = self.posterior.cov_basis.at(base)
        solution = solve_covariance(beta, x, noise, prior_diagonal(base, x))
        self.posterior.cov_factor.copy_(solution.L)
        self.cov_bound, self.cov_kl = solution.bound, solution.kl
        self.changed()

    def install(self, mean: Basis, cov: Basis, kernel: Kernel) -> None:
        """Make a posterior of these functions, its coefficients still to be set."""
        self.posterior = DecoupledPosterior(
            kernel,
            mean,
            cov,
            n_outputs=self.n_outputs,
            mean_preconditioner="none",
            cov_preconditioner="none",
        )
        self.changed()

    @torch.no_grad()
    def replace_mean(self, problem: MeanProblem, a: Float[Tensor, "m p"]) -> None:
        """Change the mean's functions and coefficients; the covariance stays."""
        L, beta = self.posterior.cov_factor.detach(), self.posterior.cov_basis
        self.install(PointBasis(problem.centres), beta, self.kernel)
        self.posterior.cov_factor.copy_(L)
        self.set_mean(a)

    @torch.no_grad()
    def set_mean(self, a: Float[Tensor, "m p"]) -> None:
        """Put coefficients with y = Ka into the posterior, whose mean is ρ Ψa."""
        self.posterior.mean_coefficients.copy_(a / self.kernel.outputscale.sqrt())
        self.changed()

    @property
    @torch.no_grad()
    def a(self) -> Float[Tensor, "m p"]:
        """Coefficients with y = Ka."""
        return self.posterior.mean_coefficients * self.kernel.outputscale.sqrt()

    @torch.no_grad()
    def mean(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n p"]:
        """Return the mean of f."""
        functions = self.posterior.mean_basis.at(self.kernel.base_kernel).double()
        return product_by_rows(functions, x, self.a)

    @torch.no_grad()
    def variance(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n p"]:
        """Return the variance of f before any calibration."""
        q = self.posterior.measure(double=True)
        return torch.cat([q.variance(part) for part in x.split(ROWS_AT_ONCE)])

    def score(self, rows: Rows) -> None:
        """Compare predictions with targets not learnt from yet; calibrate with the latest of them."""
        residuals, latent = rows.y - self.mean(rows.x), self.variance(rows.x)
        weights, known = rows.weights, rows.known.expand(rows.y.shape)
        latest = HeldOut(*(part.numpy() for part in (residuals, latent, weights, known)))
        most = min(
            HELD_OUT_MOST, max(self.n_rows // 2, len(rows))
        )  # early ones are of a poorer model
        self.held_out = self.held_out.followed_by(latest, most)
        self.calibrate()

    def calibrate(self) -> None:
        """Set the calibration by the residuals that are kept, if they are enough."""
        if len(self.held_out) >= FEWEST_SCORES and self.n_rows > EXACT_ROWS:
            self.calibration = calibrate(self.held_out)
        self.changed()

    def bound(self, rows: Rows, values: Float[Tensor, "n p"], norm: Float[Tensor, " p"]) -> float:
        """Return the bound with the mean's values at rows, scaled to all, and its squared norm aᵀKa."""
        noise, rho2 = rows.noise(self.noise()), self.kernel.outputscale.detach()
        fit = (torch.log(2 * torch.pi * noise) + (rows.y - values).square() / noise).mean(0)
        return float((self.cov_bound - 0.5 * (fit * self.n_rows + norm / rho2)).sum())


class Clock:
    """Seconds since it was made, and how many there may be."""

    def __init__(self, limit: float | None):
        self.start, self.limit = time.perf_counter(), np.inf if limit is None else limit

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return time.perf_counter() - self.start

    @property
    def left(self) -> float:
        """Seconds that are left, infinity without a limit."""
        return self.limit - self.seconds
