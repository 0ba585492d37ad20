"""Online systems with one basis for mean and covariance: SVI and iVSGPR."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import torch
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from sklearn.utils._param_validation import Interval, StrOptions

from decoupledgp.bases import BASES
from decoupledgp.estimators.online import OnlineGPRegressor
from decoupledgp.estimators.run import RUNS, Run
from decoupledgp.estimators.settings import resolve

__all__ = ["IncrementalGPRegressor", "SVGPRegressor"]

_POSITIVE = [Interval(Integral, 1, None, closed="left"), None]
_RATE = [Interval(Real, 0, 1, closed="right"), None]


class _SharedGPRegressor(OnlineGPRegressor):
    """Arguments and run of the systems with one basis; how it moves is the learner's affair."""

    _family: ClassVar[str]
    _sizes: ClassVar[dict[str | None, int]]

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_basis": _POSITIVE,
        "kernel": [Kernel, None],
        "basis": [StrOptions(set(BASES)), None],
        "likelihood": [Likelihood, None],
        "max_iter": _POSITIVE,
        "batch_size": _POSITIVE,
        "basis_increment": _POSITIVE,
        "learning_rate": _RATE,
        "natural_rate": _RATE,
        "device": [str, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
        "callbacks": [list, tuple, None],
        "preset": [StrOptions({"paper"}), None],
    }

    def __init__(
        self,
        n_basis: int | None = None,
        *,
        kernel: Kernel | None = None,
        basis: str | None = None,
        likelihood: Likelihood | None = None,
        max_iter: int | None = None,
        batch_size: int | None = None,
        basis_increment: int | None = None,
        learning_rate: float | None = None,
        natural_rate: float | None = None,
        device: str | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
        callbacks: Sequence[Callable[[Any, dict[str, Any]], Any]] | None = None,
        preset: str | None = None,
    ):
        self.n_basis = n_basis
        self.kernel = kernel
        self.basis = basis
        self.likelihood = likelihood
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.basis_increment = basis_increment
        self.learning_rate = learning_rate
        self.natural_rate = natural_rate
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
        self.callbacks = callbacks
        self.preset = preset

    def _new_run(self, n_outputs: int, rng: np.random.Generator) -> Run:
        size = self.n_basis or self._sizes[self.preset]
        params = self.get_params(deep=False)
        return RUNS[self._family](
            resolve({**params, "n_mean_basis": size, "n_cov_basis": size}),
            family=self._family,
            n_features=self.n_features_in_,
            n_outputs=n_outputs,
            kernel=self.kernel,
            likelihood=self.likelihood,
            partially_shared=True,
            dtype=torch.float64,
            device=torch.device(self.device or "cpu"),
            rng=rng,
        )


class SVGPRegressor(_SharedGPRegressor):
    """The stochastic variational sparse Gaussian process (SVI, Hensman et al. 2013), learnt online.

    Mean and covariance share one basis of M functions. Its natural parameters move by stochastic
    natural gradient and (if `whitened`) stay positive definite by construction, at every step size up to
    1; basis, kernel and noise move by Adam. A step takes O(P M² (batch_size + M)) time and O(P M²) memory, in
    float64.

    Parameters
    ----------
    n_basis : int, default=None
        Functions M: 256 by default, 1,024 with `preset="paper"`. Never more than rows seen.
    kernel : gpytorch kernel, default=None
        The prior covariance of standardised targets over standardised inputs; None is SE-ARD.
    basis : {"multiscale", "points"}, default=None
        Functions with length-scales of their own (SE-ARD kernel only, its default), or inducing
        points (any kernel).
    likelihood : gpytorch likelihood, default=None
        Any with one latent function; None is Gaussian noise with one variance per output. Where it
        is not log-concave, rows that would lower the precision count as uninformative in that step.
    max_iter : int, default=None
        Minibatches that `fit` learns from: 300 by default.
    batch_size, basis_increment : int, default=None
        Rows per minibatch (1024), and functions added per minibatch until the basis is full (128).
    learning_rate : float, default=None
        γ_0 of Adam's schedule γ_0 / (1 + 0.1 √t): 0.1 by default.
    natural_rate : float, default=None
        Step of the natural gradient, 0.1 by default; 1 forgets all but the present minibatch. With
        `preset="paper"` it is Adam's, γ_t.
    whitened : bool, default=None
        Whether the posterior of the whitened values is kept while functions and kernel move, True by
        default: the posterior then bends with the prior. False, with `preset="paper"`, keeps that of
        the function's values, as Hensman et al. write it.
    device : str, default=None
        PyTorch device to learn on; None is the CPU.
    random_state : int, RandomState instance or None, default=None
        Fixes the order of rows and the choice of functions.
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
        Per recorded step: `iteration`, `seconds`, `rows`, `elbo` and `nmse` of the minibatch.

    Examples
    --------
    >>> import numpy as np
    >>> from decoupledgp import SVGPRegressor
    >>> X = np.linspace(0, 6, 200)[:, None]
    >>> model = SVGPRegressor(20, random_state=0).fit(X, np.sin(X[:, 0]))
    >>> bool(abs(model.predict([[np.pi / 2]])[0] - 1) < 0.1)
    True
    """

    _family = "natural"
    _sizes: ClassVar[dict[str | None, int]] = {None: 256, "paper": 1024}
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **_SharedGPRegressor._parameter_constraints,
        "whitened": ["boolean", None],
    }

    def __init__(
        self,
        n_basis: int | None = None,
        *,
        kernel: Kernel | None = None,
        basis: str | None = None,
        likelihood: Likelihood | None = None,
        max_iter: int | None = None,
        batch_size: int | None = None,
        basis_increment: int | None = None,
        learning_rate: float | None = None,
        natural_rate: float | None = None,
        whitened: bool | None = None,
        device: str | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
        callbacks: Sequence[Callable[[Any, dict[str, Any]], Any]] | None = None,
        preset: str | None = None,
    ):
        super().__init__(
            n_basis,
            kernel=kernel,
            basis=basis,
            likelihood=likelihood,
            max_iter=max_iter,
            batch_size=batch_size,
            basis_increment=basis_increment,
            learning_rate=learning_rate,
            natural_rate=natural_rate,
            device=device,
            random_state=random_state,
            verbose=verbose,
            callbacks=callbacks,
            preset=preset,
        )
        self.whitened = whitened


class IncrementalGPRegressor(_SharedGPRegressor):
    """The incremental variational sparse Gaussian process (iVSGPR, Cheng & Boots 2016), learnt online.

    Mean and covariance share one basis of M functions. Each minibatch moves the posterior by
    stochastic mirror ascent, to a Gaussian measure on the old functions and the new rows, and
    projects it back by KL divergence: in closed form for a given basis, and the basis itself moves by
    gradient on that divergence. Kernel and noise move by Adam. A step takes O(P M² (batch_size + M))
    time and O(P M²) memory, in float64.

    Parameters
    ----------
    n_basis : int, default=None
        Functions M: 256 by default, as in the paper. Never more than rows seen.
    kernel : gpytorch kernel, default=None
        The prior covariance of standardised targets over standardised inputs; None is SE-ARD.
    basis : {"multiscale", "points"}, default=None
        Functions with length-scales of their own (SE-ARD kernel only, its default), or inducing
        points (any kernel).
    likelihood : gpytorch likelihood, default=None
        Any with one latent function; None is Gaussian noise with one variance per output. Where it
        is not log-concave, rows that would lower the precision count as uninformative in that step.
    max_iter : int, default=None
        Minibatches that `fit` learns from: 300 by default.
    batch_size, basis_increment : int, default=None
        Rows per minibatch (1024), and functions added per minibatch until the basis is full (128).
    learning_rate : float, default=None
        γ_0 of Adam's schedule γ_0 / (1 + 0.1 √t): 0.1 by default.
    natural_rate : float, default=None
        γ of mirror ascent, 0.1 by default; 1 forgets all but the present minibatch. With
        `preset="paper"` it is Adam's, γ_t.
    device : str, default=None
        PyTorch device to learn on; None is the CPU.
    random_state : int, RandomState instance or None, default=None
        Fixes the order of rows and the choice of functions.
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
        Per recorded step: `iteration`, `seconds`, `rows`, `elbo` and `nmse` of the minibatch.

    Examples
    --------
    >>> import numpy as np
    >>> from decoupledgp import IncrementalGPRegressor
    >>> X = np.linspace(0, 6, 200)[:, None]
    >>> model = IncrementalGPRegressor(20, random_state=0).fit(X, np.sin(X[:, 0]))
    >>> bool(abs(model.predict([[np.pi / 2]])[0] - 1) < 0.1)
    True
    """

    _family = "mirror"
    _sizes: ClassVar[dict[str | None, int]] = {None: 256, "paper": 256}
