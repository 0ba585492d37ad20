"""A stream once the mean's basis is full: rows join cells, and cells make room."""

import numpy as np
import pytest
from gpytorch.kernels import MaternKernel
from gpytorch.likelihoods import StudentTLikelihood
from numpy.testing import assert_allclose, assert_array_equal

from decoupledgp import DecoupledGPRegressor
from decoupledgp.estimators.solved import stream
from decoupledgp.estimators.solved.stream import SolvedStream
from decoupledgp.solvers import hyperparameters


@pytest.fixture(autouse=True)
def little_to_learn(monkeypatch):
    monkeypatch.setattr(hyperparameters, "GROUPS", 8)
    monkeypatch.setattr(hyperparameters, "ROUNDS", (5, 8))


def truth(X):
    return np.sin(2 * X[:, 0]) * np.cos(2 * X[:, 1])


def rows(low, high, n, seed, noise=0.05):
    rng = np.random.default_rng(seed)
    X = rng.uniform([low, -2], [high, 2], (n, 2))
    return X, truth(X) + noise * rng.standard_normal(n)


OLD, NEW = rows(-2, 0.5, 1600, 0), rows(0.5, 1.5, 300, 1)


def error(model, X):
    return np.mean((np.reshape(model.predict(X), (len(X), -1))[:, 0] - truth(X)) ** 2)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"half_life": 5000.0},
        {"likelihood": StudentTLikelihood()},
        {"kernel": MaternKernel(nu=1.5, ard_num_dims=2)},
        {"kernel": MaternKernel(nu=0.5, ard_num_dims=2)},
    ],
    ids=["plain", "half_life", "student-t", "matern-3/2", "matern-1/2"],
)
def test_it_follows_rows_to_new_places(options):
    model = DecoupledGPRegressor(400, random_state=0, **options).fit(*OLD)
    missed, before = error(model, NEW[0]), error(model, OLD[0])
    model.partial_fit(*NEW)
    assert model.n_mean_basis_ <= 400
    assert error(model, NEW[0]) < 0.4 * missed
    assert error(model, OLD[0]) < 2 * before + 1e-3


def test_several_outputs_weights_and_known_noise():
    X, y = OLD
    both = np.column_stack([y, 3 - y])
    model = DecoupledGPRegressor(400, random_state=0)
    model.fit(X, both, weights=np.full(len(X), 2.0), noise_variance=np.full(len(X), 1e-3))
    new, target = NEW
    missed = error(model, new)
    model.partial_fit(
        new,
        np.column_stack([target, 3 - target]),
        weights=np.full(len(new), 2.0),
        noise_variance=np.full(len(new), 1e-3),
    )
    assert error(model, new) < 0.2 * missed
    assert_allclose(model.predict(new).sum(1), 3, atol=0.2)


def test_local_corrections_are_enough_after_merging(monkeypatch):
    """Not one block for all cells, but blocks around what was touched."""
    monkeypatch.setattr(stream, "BLOCK", 64)
    corrected = []
    correct = SolvedStream._correct
    monkeypatch.setattr(
        SolvedStream, "_correct", lambda self, touched: corrected.append(correct(self, touched))
    )
    model = DecoupledGPRegressor(400, random_state=0).fit(*OLD)
    missed = error(model, NEW[0])
    for part in np.array_split(np.arange(len(NEW[0])), 10):
        model.partial_fit(NEW[0][part], NEW[1][part])
    assert corrected
    assert error(model, NEW[0]) < 0.2 * missed


def test_a_failed_call_leaves_merged_cells_as_they_were(monkeypatch):
    model = DecoupledGPRegressor(400, random_state=0).fit(*OLD)
    before, cells = model.predict(OLD[0]), model._run.cells.targets.copy()

    def fail(*arguments, **options):
        raise MemoryError

    for method in ("sweep_once", "_correct", "_solve_again"):
        monkeypatch.setattr(SolvedStream, method, fail)
    with pytest.raises(MemoryError):
        model.partial_fit(*NEW)
    assert_array_equal(model.predict(OLD[0]), before)
    assert_array_equal(model._run.cells.targets, cells)


def test_a_saved_model_goes_on_the_same(tmp_path):
    model = DecoupledGPRegressor(400, random_state=0).fit(*OLD).partial_fit(*NEW)
    model.save(tmp_path / "model.gp")
    loaded = DecoupledGPRegressor.load(tmp_path / "model.gp")
    more = rows(1.5, 2, 100, 2)
    assert_array_equal(
        loaded.partial_fit(*more).predict(NEW[0]), model.partial_fit(*more).predict(NEW[0])
    )


def test_rows_that_no_cell_knows_of_change_nothing(monkeypatch):
    """Without merging and far from all cells, rows are dropped: they say nothing about known places."""
    monkeypatch.setattr(stream, "ALIKE", 1.1)
    model = DecoupledGPRegressor(400, random_state=0).fit(*OLD)
    before = model.predict(OLD[0])
    model.partial_fit([[50.0, 50.0], [-50.0, 50.0]], [3.0, -3.0])
    assert_allclose(model.predict(OLD[0]), before, atol=1e-6)
    assert model.n_rows_ == len(OLD[0]) + 2


@pytest.mark.parametrize("alike", [0.4, 0.97])
def test_what_a_row_says_of_another_place_is_gaussian_conditioning(alike):
    """f(c) given y = f(x) + noise, written out; and given what is said to have been seen at c itself."""
    variance, learnt, known, weight, residual = 0.7, 0.2, 0.3, 2.0, 1.3
    noise = (learnt + known) / weight
    mean = alike * variance * residual / (variance + noise)
    left = variance - (alike * variance) ** 2 / (variance + noise)
    says = stream._Moved(
        np.array([[residual]]), np.array([[variance]]), np.array([alike]), np.array([learnt])
    )
    moved = (learnt + says.known(np.array([[known]]), np.array([weight]))) / weight
    assert_allclose(variance / (variance + moved) * says.residuals, mean)
    assert_allclose(variance - variance**2 / (variance + moved), left)
