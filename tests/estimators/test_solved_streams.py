"""`DecoupledGPRegressor()` on streams: as good as a fit, drifting, stored half way, interrupted."""

import signal

import numpy as np
import pytest
from gpytorch.kernels import MaternKernel, RBFKernel
from numpy.testing import assert_array_equal

from decoupledgp import DecoupledGPRegressor
from decoupledgp.estimators.solved import stream as stream_module
from waves import NEW, Y_NEW, X, Y, fitted, nmse, rows, stream, truth

pytestmark = pytest.mark.usefixtures("few_groups")


def test_a_stream_ends_about_where_a_fit_does():
    streamed = stream(DecoupledGPRegressor(random_state=0), X, Y, 250)
    assert streamed.n_rows_ == streamed.n_mean_basis_ == 4000
    assert nmse(streamed, NEW) < 2 * nmse(fitted(), NEW)
    mean, std = streamed.predict(NEW, return_std=True)
    assert 0.91 < (np.abs(Y_NEW - mean) < 1.96 * std).mean() < 0.99


def test_a_full_basis_goes_on_learning():
    X, y = rows(6000, noise=1.0)
    model = DecoupledGPRegressor(400, random_state=0).fit(X[:1000], y[:1000])
    before = nmse(model, NEW)
    stream(model, X[1000:], y[1000:], 500)
    assert model.n_mean_basis_ <= 400
    assert model.n_rows_ == 6000
    assert nmse(model, NEW) < 0.6 * before
    assert model._run.cells.counts.sum() == 6000


def test_one_row_at_a_time_from_the_first():
    model = DecoupledGPRegressor(random_state=0)
    for row in range(60):
        model.partial_fit(X[row : row + 1], Y[row : row + 1])
        assert np.isfinite(model.predict(NEW[:5], return_std=True)).all()
    assert model.n_rows_ == 60


def test_a_half_life_follows_what_drifts():
    X, y = rows(3000)
    kept, faded = (
        DecoupledGPRegressor(500, half_life=half_life, random_state=0).fit(X[:1500], y[:1500])
        for half_life in (None, 150)
    )
    for model in (kept, faded):
        stream(model, X[1500:], 1 - y[1500:], 150)
    error = [np.mean((model.predict(NEW) - 1 + truth(NEW)) ** 2) for model in (kept, faded)]
    assert error[1] < 0.3 * error[0]


def test_a_fading_stream_learns_its_kernel_again_and_never_forgets_all():
    X, y = rows(1200)
    model = stream(DecoupledGPRegressor(half_life=600, random_state=0), X[:600], y[:600], 20)
    assert model._run.learnt_rows > 300
    model.partial_fit(X[600:], y[600:])
    assert nmse(model, NEW) < 0.1
    short = DecoupledGPRegressor(50, half_life=1, random_state=0).fit(X[:100], y[:100])
    short.partial_fit(X[100:400], y[100:400])
    assert np.isfinite(short.predict(NEW)).all()


def test_scales_that_change_take_the_calibration_with_them():
    X, y = rows(3000)
    model = DecoupledGPRegressor(random_state=0).partial_fit(X[:1300], 1e-3 * y[:1300])
    stream(model, X[1300:], y[1300:], 1700)
    _, std = model.predict(NEW, return_std=True)
    assert np.all(std > 0.01)


def test_an_error_in_a_stream_leaves_everything_as_it_was(monkeypatch):
    model = DecoupledGPRegressor(random_state=0).fit(X[:300], Y[:300])
    twin = DecoupledGPRegressor(random_state=0).fit(X[:300], Y[:300])

    def fail(*_, **__):
        raise MemoryError

    for name in ("solve_mean", "correct_block"):
        with monkeypatch.context() as patched:
            patched.setattr(stream_module, name, fail)
            size = 300 if name == "solve_mean" else 20
            with pytest.raises(MemoryError):
                model.partial_fit(X[300 : 300 + size], Y[300 : 300 + size])
    for one in (model, twin):
        one.partial_fit(X[300:700], Y[300:700])
    assert_array_equal(model.predict(NEW), twin.predict(NEW))
    assert len(model.history_) == len(twin.history_)


@pytest.mark.parametrize("first", [50, 150])
def test_an_error_after_another_smoothness_was_chosen_takes_that_back(monkeypatch, first):
    """The first rows have the smooth kernel; then a rough one is chosen, and the solution fails."""
    steps = np.sign(np.sin(5 * X[:, 0]))
    model = DecoupledGPRegressor(random_state=0).fit(X[:first], truth(X[:first]))
    before = model.predict(NEW, return_std=True)

    def fail(*_, **__):
        assert isinstance(model.kernel_.base_kernel, MaternKernel)
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(stream_module, "solve_mean", fail)
        with pytest.raises(MemoryError):
            model.partial_fit(X[first:900], steps[first:900])
    assert isinstance(model.kernel_.base_kernel, RBFKernel)
    assert_array_equal(model.predict(NEW, return_std=True), before)
    model.partial_fit(X[first:900], steps[first:900])
    assert isinstance(model.kernel_.base_kernel, MaternKernel)


def test_files(tmp_path):
    model = stream(
        DecoupledGPRegressor(2000, random_state=0).fit(X[:1800], Y[:1800]),
        X[1800:2300],
        Y[1800:2300],
    )
    model.save(tmp_path / "model.gp")
    loaded = DecoupledGPRegressor.load(tmp_path / "model.gp")
    for one, other in zip(
        loaded.predict(NEW, return_std=True), model.predict(NEW, return_std=True), strict=True
    ):
        assert_array_equal(one, other)
    for one in (model, loaded):
        stream(one, X[2300:3000], Y[2300:3000], 350)
    assert_array_equal(loaded.predict(NEW), model.predict(NEW))
    assert [record["rows"] for record in loaded.history_] == [r["rows"] for r in model.history_]


def test_a_half_life_makes_room_where_a_stream_has_gone():
    """All cells are full of rows that have faded, none are alike, and the new ones are like none of them."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 8)) + 10 * (np.arange(500) >= 100)[:, None]
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(500)
    kernel = RBFKernel()
    kernel.lengthscale = 0.5
    kernel.requires_grad_(False)
    model = DecoupledGPRegressor(100, kernel=kernel, half_life=50, random_state=0)
    model.fit(X[:100], y[:100]).partial_fit(X[100:], y[100:])
    assert model.n_mean_basis_ == 100
    assert model._run.cells.centres.mean() > 9


def test_ctrl_c_in_a_stream_keeps_the_step_that_it_waited_for(monkeypatch):
    model = DecoupledGPRegressor(random_state=0).fit(X[:300], Y[:300])
    twin = DecoupledGPRegressor(random_state=0).fit(X[:300], Y[:300])
    twin.partial_fit(X[300:700], Y[300:700])
    solve = stream_module.solve_mean

    def interrupted(*arguments, **options):
        signal.raise_signal(signal.SIGINT)
        return solve(*arguments, **options)

    monkeypatch.setattr(stream_module, "solve_mean", interrupted)
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            model.partial_fit(X[300:700], Y[300:700])
    finally:
        signal.signal(signal.SIGINT, usual)
    assert_array_equal(model.predict(NEW), twin.predict(NEW))
