"""Rows in groups, of which new ones are to be predicted."""

import numpy as np
import pytest
from gpytorch.likelihoods import StudentTLikelihood
from numpy.testing import assert_array_equal

from decoupledgp import DecoupledGPRegressor
from decoupledgp.data import require_groups
from decoupledgp.estimators.solved import SolvedRun, run
from decoupledgp.solvers import hyperparameters


@pytest.fixture(autouse=True)
def little_to_learn(monkeypatch):
    monkeypatch.setattr(hyperparameters, "GROUPS", 8)
    monkeypatch.setattr(hyperparameters, "ROUNDS", (5, 8))


def walks(n_groups=16, each=80, seed=0):
    """Trajectories in a plane; each has an offset of its own, which its inputs nearly identify."""
    rng = np.random.default_rng(seed)
    steps = 0.05 * rng.standard_normal((n_groups, each, 2))
    X = rng.uniform(-2, 2, (n_groups, 1, 2)) + steps.cumsum(1)
    y = np.sin(X[..., 0]) + 0.5 * rng.standard_normal((n_groups, 1))
    y = y + 0.05 * rng.standard_normal(y.shape)
    return X.reshape(-1, 2), y.ravel(), np.repeat(np.arange(n_groups), each)


def coverage(model, X, y):
    mean, std = model.predict(X, return_std=True)
    return np.mean(np.abs(y - mean) < 1.96 * std)


def test_groups_make_intervals_for_new_groups_honest():
    X, y, groups = walks(20, 150)
    new, target, _ = walks(20, 150, seed=1)
    by_row = DecoupledGPRegressor(random_state=0).fit(X, y)
    by_group = DecoupledGPRegressor(random_state=0).fit(X, y, groups=groups)
    assert coverage(by_row, new, target) < 0.8
    assert coverage(by_group, new, target) > 0.88


@pytest.mark.parametrize("most", [None, 500])
def test_whole_groups_are_held_out_and_learnt_in_the_end(monkeypatch, most):
    """With a basis for all rows, and with cells that rows share."""
    X, _, groups = walks()
    y = np.sin(4 * X[:, 0]) * np.cos(4 * X[:, 1])  # nothing that the inputs do not say
    seen = {}
    solve = SolvedRun.solve

    def spied(self, parts, *arguments):
        seen["held"], seen["kept"] = parts.held.X, parts.kept.X
        return solve(self, parts, *arguments)

    monkeypatch.setattr(SolvedRun, "solve", spied)
    model = DecoupledGPRegressor(most, random_state=0).fit(X, y, groups=groups)
    number = {row.tobytes(): group for row, group in zip(X, groups, strict=True)}
    held = {number[row.tobytes()] for row in seen["held"]}
    kept = {number[row.tobytes()] for row in seen["kept"]}
    assert held
    assert kept
    assert not held & kept
    assert len(seen["held"]) >= 0.1 * len(X)
    inside = np.isin(groups, list(held))
    error = np.mean((model.predict(X[inside]) - y[inside]) ** 2)
    monkeypatch.setattr(SolvedRun, "join_held", lambda *arguments, **options: None)
    without = DecoupledGPRegressor(most, random_state=0).fit(X, y, groups=groups)
    left_out = np.mean((without.predict(X[inside]) - y[inside]) ** 2)
    assert error < 0.3 * left_out


def test_names_will_do():
    groups = np.repeat(np.arange(8), 150)
    names = np.array(list("abcdefgh"))[groups]
    assert_array_equal(require_groups(names.tolist(), len(groups)), groups)


def test_groups_too_small_to_calibrate_by_are_said_to_be():
    X, y, _ = walks(n_groups=8, each=150)
    with pytest.warns(UserWarning, match="at random, not by groups"):
        model = DecoupledGPRegressor(random_state=0).fit(X, y, groups=np.arange(1200) < 10)
    assert model.calibration_ is not None


def test_few_rows_are_learnt_from_as_without_groups():
    X, y, groups = walks(n_groups=4, each=100)
    told, plain = (
        DecoupledGPRegressor(random_state=0).fit(X, y, groups=given) for given in (groups, None)
    )
    assert_array_equal(told.predict(X), plain.predict(X))


def test_a_stream_after_groups_keeps_their_calibration(tmp_path):
    X, y, groups = walks()
    more, further, _ = walks(n_groups=2, seed=2)
    model = DecoupledGPRegressor(random_state=0).fit(X, y, groups=groups)
    before = model.calibration_
    model.save(tmp_path / "model.gp")
    model = DecoupledGPRegressor.load(tmp_path / "model.gp").partial_fit(more, further)
    assert_array_equal(model.calibration_.latent, before.latent)


def test_groups_of_which_there_is_no_work_for_all_are_thinned_alike(monkeypatch):
    monkeypatch.setattr(run, "MOST_WORK", 10 * 1100**2)
    monkeypatch.setattr(run, "best_share", lambda kernel, x, noise, shares: shares[0])
    X, y, groups = walks(n_groups=40, each=100)
    model = DecoupledGPRegressor(random_state=0).fit(X, y, groups=groups)
    assert model.n_rows_ == 1100 + -(-400 * 1100 // 3600)
    assert model.n_mean_basis_ <= model.n_rows_


@pytest.mark.parametrize("likelihood", [None, StudentTLikelihood()])
def test_units_are_compared_on_other_groups(monkeypatch, likelihood):
    """The rows that decide about a power transform are of groups that the predicting ones are not of."""
    trials = []

    def error(self, rows, end):
        trials.append([self.groups[part] for part in self.trial])
        return 1.0

    monkeypatch.setattr(hyperparameters._Climber, "_error", error)
    X, y, groups = walks()
    model = DecoupledGPRegressor(likelihood=likelihood, random_state=0)
    model.fit(np.exp(2 * X), y, groups=groups)
    assert trials
    for learnt, held in trials:
        assert len(learnt) > 300
        assert len(held) > 100
        assert not set(learnt) & set(held)


def test_other_likelihoods_take_groups():
    X, y, groups = walks(n_groups=8, each=150)
    model = DecoupledGPRegressor(likelihood=StudentTLikelihood(), max_seconds=4, random_state=0)
    model.fit(X, y, groups=groups)
    assert model._run.grouped
    assert np.isfinite(model.predict(X[:5], return_std=True)).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_group_of_nearly_everything_is_never_held_out(monkeypatch, seed):
    X, y, groups = walks(n_groups=8, each=150)
    kept = []
    monkeypatch.setattr(SolvedRun, "solve", lambda self, parts, *_: kept.append(len(parts.kept)))
    DecoupledGPRegressor(random_state=seed).fit(X, y, groups=groups == 0)
    assert kept == [7 * 150]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (np.zeros(1200), "at least two"),
        (np.arange(5), "an entry per row"),
        (np.ones((1200, 2)), "an entry per row"),
        (np.r_[np.nan, np.arange(1199)], "NaN"),
        (np.array([1, "a", None] * 400, dtype=object), "all numbers or all strings"),
    ],
)
def test_bad_groups_get_one_clear_error(groups, message):
    X, y, _ = walks(n_groups=8, each=150)
    with pytest.raises(ValueError, match=message):
        DecoupledGPRegressor().fit(X, y, groups=groups)


def test_groups_are_refused_where_nothing_is_held_out():
    X, y, groups = walks(n_groups=8, each=150)
    with pytest.raises(ValueError, match="groups is for solver"):
        DecoupledGPRegressor(preset="paper").fit(X, y, groups=groups)
