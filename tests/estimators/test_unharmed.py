"""What fails or is stopped leaves the model as it was, or as the last whole step left it."""

import signal

import numpy as np
import pytest
from gpytorch.kernels import RBFKernel
from gpytorch.likelihoods import (
    BetaLikelihood,
    StudentTLikelihood,
)
from numpy.testing import assert_array_equal
from sklearn.exceptions import NotFittedError

from decoupledgp import DecoupledGPRegressor, ExactGPRegressor, SVGPRegressor
from decoupledgp.learners import GradientLearner
from small_tables import DTYPES, X, Y, check_predictions, raised, small, y


def test_refused_targets_leave_the_model_as_it_was():
    model = small(likelihood=BetaLikelihood()).fit(X, 1 / (1 + np.exp(-y)))
    before = model.predict(X, return_std=True)
    raised(lambda: model.partial_fit(X, (y > 0) * 1.0), ValueError, "does not allow")
    assert_array_equal(model.predict(X, return_std=True), before)


def test_refused_rows_leave_a_stream_that_has_hardly_begun_as_it_was():
    """Nothing of them is kept either: later rows are learnt as if they had never come."""
    good = 1 / (1 + np.exp(-y))
    model, twin = (SVGPRegressor(10, likelihood=BetaLikelihood(), random_state=0) for _ in range(2))
    for one in (model, twin):
        one.partial_fit(X[:10], good[:10])
    raised(lambda: model.partial_fit(X[10:20], good[10:20] + 1), ValueError, "does not allow")
    assert model.n_rows_ == 10
    for one in (model, twin):
        one.partial_fit(X[20:], good[20:])
    assert_array_equal(model.predict(X), twin.predict(X))


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_one_impossible_target_in_a_later_minibatch_is_named_and_nothing_is_learnt(method):
    good = 1 / (1 + np.exp(-y))
    model = small(likelihood=BetaLikelihood()).fit(X, good)
    before, bad = model.predict(X), good.copy()
    bad[37] = 1 - 1e-9  # which is 1 in float32
    raised(lambda: getattr(model, method)(X, bad), ValueError, "1 at row 37")
    assert model.n_rows_ == 40
    assert_array_equal(model.predict(X), before)


MODELS = {
    "gradient": lambda: small(),
    "sweeps": lambda: DecoupledGPRegressor(random_state=0),
    "svi": lambda: SVGPRegressor(5, max_iter=3, random_state=0),
    "exact": lambda: ExactGPRegressor(max_iter=3, random_state=0),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_fit_that_fails_leaves_the_model_as_it_was(name):
    model = MODELS[name]().fit(X, y)
    before = model.predict(X)
    wide = np.column_stack([X, X])
    raised(lambda: model.fit(wide, np.full(40, np.nan)), ValueError, "NaN")
    raised(
        lambda: model.set_params(kernel=RBFKernel(ard_num_dims=7)).fit(wide, Y), ValueError, "ard"
    )
    assert model.n_features_in_ == 2
    assert_array_equal(model.predict(X), before)


@pytest.mark.parametrize("name", MODELS)
def test_a_first_fit_that_fails_leaves_no_model(name):
    model = MODELS[name]().set_params(kernel=RBFKernel(ard_num_dims=7))
    raised(lambda: model.fit(X, y), ValueError, "ard")
    with pytest.raises(NotFittedError):
        model.predict(X)


@pytest.mark.parametrize("likelihood", [None, StudentTLikelihood()])
@pytest.mark.parametrize("solver", ["gradient", "sweeps"])
def test_a_caller_may_write_to_his_arrays_between_calls(solver, likelihood):
    options = {"likelihood": likelihood, "solver": solver, "random_state": 0}
    reused, fresh = (DecoupledGPRegressor(20, 8, **options) for _ in range(2))
    X_buffer, y_buffer = np.empty((10, 2)), np.empty(10)
    for start in range(0, 40, 10):
        X_buffer[:], y_buffer[:] = X[start : start + 10], y[start : start + 10]
        reused.partial_fit(X_buffer, y_buffer)
        fresh.partial_fit(X[start : start + 10].copy(), y[start : start + 10].copy())
    assert_array_equal(reused.predict(X), fresh.predict(X))


class Interrupt:
    """A callback that presses Ctrl-C once."""

    def __init__(self, at):
        self.calls, self.at = 0, at

    def __call__(self, model, record):
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 10, 40])
def test_an_interrupted_fit_leaves_the_model_of_the_last_step(n, dtype):
    model = small(dtype=dtype, callbacks=[Interrupt(at=3)])
    with pytest.raises(KeyboardInterrupt):
        model.fit(X[:n], Y[:n])
    whole = small(dtype=dtype, max_iter=3).fit(X[:n], Y[:n])
    assert model.n_iter_ == whole.n_iter_ == 3
    assert_array_equal(model.predict(X, return_std=True), whole.predict(X, return_std=True))

    model.partial_fit(X[-5:], Y[-5:])
    assert model.n_iter_ == 4
    assert model.n_rows_ == whole.n_rows_ + 5
    check_predictions(model, X, Y)


@pytest.fixture
def ctrl_c():
    """Return a function that presses Ctrl-C, also where a test run ignores it."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, usual)


@pytest.mark.parametrize("method", ["grow", "step"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_ctrl_c_within_a_step_leaves_the_model_of_a_whole_step(method, when, monkeypatch, ctrl_c):
    """Wherever it comes, also between adding the last functions and telling the learner."""
    original = getattr(GradientLearner, method)

    def interrupted(learner, *arguments, **options):
        full = learner.posterior.n_mean == 18
        if full and when == "before":
            ctrl_c()
        result = original(learner, *arguments, **options)
        if full and when == "after":
            ctrl_c()
        return result

    monkeypatch.setattr(GradientLearner, method, interrupted)
    model = small(n_mean_basis=18, n_cov_basis=18)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    monkeypatch.undo()
    assert 0 < model.n_iter_ < 8
    whole = small(n_mean_basis=18, n_cov_basis=18, max_iter=model.n_iter_).fit(X, y)
    assert_array_equal(model.predict(X, return_std=True), whole.predict(X, return_std=True))
    assert len(model.history_) == model.n_iter_

    model.partial_fit(X, y)
    assert model.n_mean_basis_ == 18
    assert model.posterior_.mean_coefficients.all()
    check_predictions(model, X, y)


def test_an_interrupted_stream_goes_on():
    model = small(callbacks=[Interrupt(at=2)])
    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(X, y)
    model.partial_fit(X, y)
    check_predictions(model, X, y)
