"""`DecoupledGPRegressor`: the decoupled Gaussian process behind scikit-learn's conventions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import GaussianLikelihood, Likelihood
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions

from decoupledgp.bases import BASES
from decoupledgp.data import require_groups, require_row_numbers
from decoupledgp.estimators.online import OnlineGPRegressor
from decoupledgp.estimators.run import RUNS, Run
from decoupledgp.estimators.settings import resolve
from decoupledgp.estimators.solved import SitesRun, Sizes, SolvedRun, Table
from decoupledgp.posteriors.preconditioners import COV_PRECONDITIONERS, MEAN_PRECONDITIONERS
from decoupledgp.report.progress import progress
from decoupledgp.solvers.calibration import Calibration
from decoupledgp.solvers.mean import PAIRS
from decoupledgp.solvers.selection import CHOICES

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DecoupledGPRegressor"]

GRADIENT_ARGUMENTS = (
    "family",
    "max_iter",
    "batch_size",
    "basis_increment",
    "kl_batch_size",
    "learning_rate",
    "natural_rate",
    "mean_preconditioner",
    "cov_preconditioner",
    "partially_shared",
    "preset",
)
"""Arguments that mean something to stochastic gradients only."""

_POSITIVE = [Interval(Integral, 1, None, closed="left"), None]
_COUNT = [Interval(Integral, 0, None, closed="left"), None]


class DecoupledGPRegressor(OnlineGPRegressor):
    """Gaussian process regression with separate bases for mean and covariance, learnt online.

    The posterior mean has a large basis, which costs time and memory linear in its size; the
    posterior covariance has a small one, cubic in its size (Cheng & Boots, NIPS 2017). Several
    outputs share both bases. Inputs and targets are standardised inside.

    By default the model is solved for: kernel and noise from the evidence of neighbourhoods, the
    mean by sweeps of exact block solutions, the covariance in closed form, and the variances
    calibrated on rows that were held out until then; other likelihoods by Newton's method around
    that. With `solver="gradient"`, which any argument of stochastic gradients, another family or
    `preset="paper"` imply, everything is learnt as in the paper: one stochastic gradient step per
    minibatch.

    Parameters
    ----------
    n_mean_basis, n_cov_basis : int, default=None
        Sizes M_α and M_β of the two bases, never more than rows seen. By default a mean function for
        every row up to 65,536, and 512 covariance functions (one per row, the exact GP, up to 1,024
        rows); with `solver="gradient"` 4096 and 128.
    solver : {"sweeps", "gradient"}, default=None
        How the model is found. "sweeps" is for the decoupled family on inducing points; None is
        "sweeps" where it can be.
    max_seconds : float, default=None
        Time for `fit`, for "sweeps": fewer rows, mean functions and sweeps where it is short, and more
        than by default where it is long. A step that has begun is finished, so that it can be missed
        on tables of many thousand rows.
    half_life : float, default=None
        For streams that drift, with "sweeps": rows after which what `partial_fit` learnt counts half.
    warp_inputs : bool, default=None
        Whether skewed inputs go through a power transform (Yeo & Johnson), with "sweeps"; None is
        where random rows are then predicted better by others, and the kernel is "auto" or None; True
        is with any kernel.
    basis_choice : {"random", "k-means++", "leverage", "greedy"}, default="random"
        Which rows become functions where not all do, with "sweeps": any; spread out; those that a few
        random ones explain least; or each next the one that those before explain least.
    family : {"decoupled", "hybrid", "orthogonal"}, default="decoupled"
        The posterior family: the paper's; or one whose covariance basis carries a mean of its own,
        which natural gradients learn, with the other mean functions added as they are (hybrid) or
        without what the covariance basis can express (orthogonal).
    kernel : gpytorch kernel, "auto" or None, default="auto"
        The prior covariance of standardised targets over standardised inputs; None is SE-ARD. "auto" is
        that one or, by sweeps from 100 rows on, a Matérn-ARD kernel of order 5/2, 3/2 or 1/2, whichever
        foretells rows best; by gradients SE-ARD. Length-scales that were not set are initialised by the
        median trick.
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
    natural_rate : float, default=None
        Step of the natural gradient of the hybrid and orthogonal families: 0.1 by default, γ_t with
        `preset="paper"`, 1 at most.
    mean_preconditioner : {"jacobi", "nystrom", "none"}, default="jacobi"
        How the mean coefficients are parametrised: "nystrom" by K_α as the covariance basis sees it,
        for O(M_α M_β²) more per step; not for the orthogonal family, which leaves it nothing to do.
    cov_preconditioner : {"jacobi", "full", "none"}, default="jacobi"
        How the covariance factor L of the decoupled family is parametrised: "full" by K_β itself.
    partially_shared : bool, default=False
        Whether the covariance basis is the first part of the mean basis too. With equal sizes this
        is the ordinary sparse GP with one basis.
    dtype : {"float32", "float64"}, default="float32"
        Type of the parameters and of the mean's training by gradients. The covariance part, all
        predictions and everything that is solved for are float64.
    device : str, default=None
        PyTorch device to learn on; None is the CPU.
    random_state : int, RandomState instance or None, default=None
        Fixes the order of rows, the choice of functions and of the KL's columns: a run repeats
        exactly on the same machine (with `max_seconds`, as far as the clock does).
    verbose : int, default=0
        1 shows a progress bar.
    callbacks : list of callables, default=None
        Each is called as `callback(model, record)` after every recorded step; `fit` stops when one
        returns True.
    preset : {None, "paper"}, default=None
        "paper" gives the paper's sizes and steps for whatever is not given explicitly, begins with
        length-scales by the median distance in each feature, not between rows, and weighs the likelihood
        in `fit` by the rows of the table, not by those seen so far.

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
        Rows learnt from: the N that the bound is scaled to (with `preset="paper"`, `fit`'s table).
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
        "family": [StrOptions({"decoupled", "hybrid", "orthogonal"})],
        "solver": [StrOptions({"sweeps", "gradient"}), None],
        "max_seconds": [Interval(Real, 0, None, closed="neither"), None],
        "half_life": [Interval(Real, 0, None, closed="neither"), None],
        "warp_inputs": ["boolean", None],
        "basis_choice": [StrOptions(set(CHOICES))],
        "kernel": [Kernel, StrOptions({"auto"}), None],
        "basis": [StrOptions(set(BASES)), None],
        "likelihood": [Likelihood, None],
        "max_iter": _POSITIVE,
        "batch_size": _POSITIVE,
        "basis_increment": _POSITIVE,
        "kl_batch_size": _POSITIVE,
        "learning_rate": [Interval(Real, 0, 1, closed="right"), None],
        "natural_rate": [Interval(Real, 0, 1, closed="right"), None],
        "mean_preconditioner": [StrOptions(set(MEAN_PRECONDITIONERS))],
        "cov_preconditioner": [StrOptions(set(COV_PRECONDITIONERS))],
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
        solver: str | None = None,
        max_seconds: float | None = None,
        half_life: float | None = None,
        warp_inputs: bool | None = None,
        basis_choice: str = "random",
        kernel: Kernel | str | None = "auto",
        basis: str | None = None,
        likelihood: Likelihood | None = None,
        max_iter: int | None = None,
        batch_size: int | None = None,
        basis_increment: int | None = None,
        kl_batch_size: int | None = None,
        learning_rate: float | None = None,
        natural_rate: float | None = None,
        mean_preconditioner: str = "jacobi",
        cov_preconditioner: str = "jacobi",
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
        self.solver = solver
        self.max_seconds = max_seconds
        self.half_life = half_life
        self.warp_inputs = warp_inputs
        self.basis_choice = basis_choice
        self.kernel = kernel
        self.basis = basis
        self.likelihood = likelihood
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.basis_increment = basis_increment
        self.kl_batch_size = kl_batch_size
        self.learning_rate = learning_rate
        self.natural_rate = natural_rate
        self.mean_preconditioner = mean_preconditioner
        self.cov_preconditioner = cov_preconditioner
        self.partially_shared = partially_shared
        self.dtype = dtype
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
        self.callbacks = callbacks
        self.preset = preset

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        weights: Any = None,
        noise_variance: Any = None,
        groups: Any = None,
    ) -> Self:
        """Learn from all rows, from scratch.

        All further arguments are for "sweeps", an array with an entry per row. `weights` divide the
        variance of the noise that is learnt: a weight of two is a row measured with half of it. (Under
        other likelihoods they multiply the row's log-likelihood.) `noise_variance` is known beforehand
        and is added, in the units of y squared; for several outputs it may be (n, P). Predictions are
        of rows of a typical weight, the geometric mean of those in `fit`, and no known noise. `groups`
        (trajectories, patients, days; numbers or strings) are held out whole when the variances are
        calibrated: give them if you will predict for new ones, since random rows of a trajectory are
        much easier to predict than the next trajectory.

        By sweeps the rows are copied once, standardised; by gradients not at all. Ctrl-C leaves the
        model as it was after the last whole step, ready to predict; before the first one is done, as it
        was before `fit`.
        """
        if not self._is_solved():
            _refuse_row_arguments(weights=weights, noise_variance=noise_variance, groups=groups)
            return super().fit(X, y)
        with self._all_or_nothing():
            table = self._table(X, y, weights, noise_variance, reset=True)
            return self._solve(
                table, None if groups is None else require_groups(groups, len(table))
            )

    def partial_fit(
        self, X: Any, y: Any, *, weights: Any = None, noise_variance: Any = None
    ) -> Self:
        """Go on learning from more rows; never starts over.

        With "sweeps" the first call is `fit`; later rows are predicted first, which keeps the
        variances calibrated, then become mean functions, or join the nearest one once there are
        `n_mean_basis`; where they are far from all, functions that are alike are merged to make room.
        Of all rows that much is kept. With "gradient" one step is taken per
        `batch_size` rows, N grows by every row that comes, so that a row shown twice counts twice,
        and no row is kept (except the very first ones, until there are 32). `weights` and
        `noise_variance` are as in `fit`.
        """
        if not self._is_solved():
            if isinstance(getattr(self, "_run", None), SolvedRun):
                raise ValueError(
                    'this model was begun with solver="sweeps"; no gradients go on from it'
                )
            _refuse_row_arguments(weights=weights, noise_variance=noise_variance)
            return super().partial_fit(X, y)
        if not hasattr(self, "_run"):
            return self.fit(X, y, weights=weights, noise_variance=noise_variance)
        table = self._table(X, y, weights, noise_variance, reset=False)
        if not isinstance(self._run, SolvedRun):
            raise ValueError(
                'this model was begun with solver="gradient"; it cannot go on by sweeps'
            )
        self._run.more(table, self._called_back)
        return self

    @property
    def calibration_(self) -> Calibration | None:
        """How predictive variances follow from those of the model; None if they are the model's own."""
        return self._run.calibration

    def _table(self, X: Any, y: Any, weights: Any, noise_variance: Any, *, reset: bool) -> Table:
        """Return checked rows with what is known of their noise."""
        table = Table.plain(*self._check_rows(X, y, reset=reset))
        n, n_outputs = table.Y.shape
        if weights is not None:
            table.weights = require_row_numbers(weights, "weights", (n,), positive=True)
        if noise_variance is not None:
            if not self._is_gaussian():
                raise ValueError(
                    "noise_variance is for Gaussian noise, and the likelihood is another"
                )
            shapes = [(n,)] if n_outputs == 1 else [(n,), (n, n_outputs)]
            known = require_row_numbers(noise_variance, "noise_variance", *shapes)
            table.known = np.broadcast_to(known.reshape(n, -1), table.Y.shape)
        return table

    def _solve(self, table: Table, groups: np.ndarray | None = None) -> Self:
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        kind = SolvedRun if self._is_gaussian() else SitesRun
        run = kind(
            Sizes(
                n_mean_basis=self.n_mean_basis,
                n_cov_basis=self.n_cov_basis,
                max_seconds=self.max_seconds,
                half_life=self.half_life,
                warp_inputs=self.warp_inputs,
                basis_choice=self.basis_choice,
                choose_smoothness=self.kernel == "auto",
            ),
            n_features=self.n_features_in_,
            n_outputs=table.Y.shape[1],
            kernel=self._given_kernel,
            likelihood=self.likelihood,
            rng=np.random.default_rng(seed),
        )

        expected = None if self.max_seconds else PAIRS + 1  # a given time is used up
        with progress(expected, bool(self.verbose)) as advance:

            def followed(record: dict[str, Any]) -> bool:
                self._run = run
                advance(record)
                return self._called_back(record)

            run.fit(table, followed, groups)
        return self

    @property
    def _given_kernel(self) -> Kernel | None:
        return self.kernel if isinstance(self.kernel, Kernel) else None

    def _is_gaussian(self) -> bool:
        return isinstance(self.likelihood, GaussianLikelihood | None)

    def _is_solved(self) -> bool:
        """Whether the model is solved for; raises if it is asked for and cannot be."""
        self._check_arguments()
        if self.solver == "gradient":
            self._refuse_solver_arguments()
            return False
        reasons = self._gradient_reasons()
        if self.solver == "sweeps" and reasons:
            raise ValueError(f'solver="sweeps" is not possible with {", ".join(reasons)}')
        if reasons:
            self._refuse_solver_arguments()
        return not reasons

    def _gradient_reasons(self) -> list[str]:
        """Return the arguments that only stochastic gradients can honour."""
        values = self.get_params(deep=False)
        plain = signature(DecoupledGPRegressor.__init__).parameters
        reasons = [name for name in GRADIENT_ARGUMENTS if values[name] != plain[name].default]
        if self.basis == "multiscale":
            reasons.append("basis")
        if self.device not in (None, "cpu"):
            reasons.append("device")
        return reasons

    def _refuse_solver_arguments(self) -> None:
        plain = signature(DecoupledGPRegressor.__init__).parameters
        for name in ("max_seconds", "half_life", "warp_inputs", "basis_choice"):
            if getattr(self, name) != plain[name].default:
                raise ValueError(f'{name} is for solver="sweeps", and this is learnt by gradients')

    def _new_run(self, n_outputs: int, rng: np.random.Generator) -> Run:
        if self.partially_shared and self.family != "decoupled":
            raise ValueError(
                f'partially_shared is for family="decoupled"; the {self.family} family shares its '
                "covariance basis anyway"
            )
        return RUNS[self.family](
            resolve(self.get_params(deep=False)),
            family=self.family,
            n_features=self.n_features_in_,
            n_outputs=n_outputs,
            kernel=self._given_kernel,
            likelihood=self.likelihood,
            partially_shared=self.partially_shared or self.family != "decoupled",
            dtype=getattr(torch, self.dtype),
            device=torch.device(self.device or "cpu"),
            rng=rng,
        )


def _refuse_row_arguments(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(f'{name} is for solver="sweeps", and this is learnt by gradients')
