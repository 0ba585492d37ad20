"""The readers of data sets, on tiny archives of the same form."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from benchmarks import tables
from benchmarks.tables import SETS, TWELVE, UCI, load

N = 40


def write(folder, name, **arrays):
    path = folder / f"{SETS[name][0]}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)


def codes(rng, rows, columns, name):
    """Return a table in 16 bits under a name, and its values."""
    lo, step = rng.standard_normal(columns), rng.uniform(0.1, 1, columns)
    q = rng.integers(0, 60_000, (rows, columns)).astype(np.uint16)
    return {f"{name}_q": q, f"{name}_lo": lo, f"{name}_step": step}, lo + step * q


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def raw(split, X, Y, train):
    """Undo the standardisation of training rows, given the raw tables."""
    undo = [t[train].mean(0) + part * t[train].std(0) for t, part in ((X, split[0]), (Y, split[1]))]
    return np.hstack(undo)


def test_all_sets_of_the_comparisons_are_there():
    assert len(TWELVE) == 12
    assert len(UCI) == 38
    assert {name.split("/")[1] for name in UCI} >= {"kin8nm", "yacht", "tamielectric"}


def test_folds_are_test_parts_and_training_rows_are_standardised(tmp_path, rng):
    X, y, fold = rng.normal(3, 2, (N, 2)), rng.normal(5, 7, N), np.arange(N) % 10
    write(tmp_path, "kin40k", X=X, y=y, fold=fold)
    split = load("kin40k", 3, tmp_path)
    assert split.X_train.shape == (36, 2)
    assert split.y_test.shape == (4, 1)
    assert_allclose(split.X_train.mean(0), 0, atol=1e-12)
    assert_allclose(split.y_train.std(0), 1)
    train = fold != 3
    assert_allclose(split.X_test, (X[~train] - X[train].mean(0)) / X[train].std(0))
    assert_allclose(split.y_test[:, 0], (y[~train] - y[train].mean()) / y[train].std())
    with pytest.raises(ValueError, match="fold 10 does not exist; there are 0 to 9"):
        load("kin40k", 10, tmp_path)


def test_listed_splits(tmp_path, rng):
    X, y = rng.standard_normal((N, 3)), np.arange(N, dtype=float)
    write(tmp_path, "uci20/yacht", X=X, y=y, test_idx=np.array([[1, 2], [7, 30]]))
    split = load("uci20/yacht", 1, tmp_path)
    rest = np.delete(y, [7, 30])
    assert_allclose(split.y_test[:, 0] * rest.std() + rest.mean(), [7, 30])
    with pytest.raises(ValueError, match="split 2 does not exist"):
        load("uci20/yacht", 2, tmp_path)


def test_other_sets_are_split_by_seed_and_constant_columns_stay_finite(tmp_path, rng):
    X = np.column_stack([rng.standard_normal(N), np.full(N, 4.0)])
    write(tmp_path, "house_8l", X=X, y=rng.standard_normal(N))
    first, again, other = (load("house_8l", seed, tmp_path) for seed in (0, 0, 1))
    assert len(first.X_train) == 36
    assert_array_equal(first.X_test, again.X_test)
    assert not np.array_equal(first.X_test, other.X_test)
    assert_array_equal(first.X_train[:, 1], 0)


def test_few_test_rows_of_large_sets(tmp_path, rng, monkeypatch):
    monkeypatch.setattr(tables, "MOST_TEST_ROWS", 3)
    monkeypatch.setattr(tables, "LARGE", N - 1)
    write(tmp_path, "house_8l", X=rng.standard_normal((N, 2)), y=rng.standard_normal(N))
    split = load("house_8l", 0, tmp_path)
    assert len(split.X_test) == len(split.y_test) == 3
    assert len(split.X_train) == 36
    assert split.X_train.dtype == np.float32


def test_pick_and_place_is_inverse_dynamics_by_trajectory(tmp_path, rng):
    q, qd, tau, qd_next = (rng.standard_normal((N, 7)) for _ in range(4))
    traj = np.repeat([0, 1, 2, 3], N // 4)
    write(tmp_path, "kuka_lwr_pickplace", q=q, qd=qd, tau=tau, qd_next=qd_next, traj=traj)
    split = load("kuka_lwr_pickplace", 2, tmp_path)
    X, train = np.hstack([q, qd, (qd_next - qd) * 100]), traj != 2
    assert_allclose(raw(split, X, tau, train), np.hstack([X, tau])[train], atol=1e-10)
    with pytest.raises(ValueError, match="trajectory 4"):
        load("kuka_lwr_pickplace", 4, tmp_path)


def test_wind_drops_rows_that_miss_a_value(tmp_path, rng):
    V = rng.standard_normal((N, 7)).astype(np.float32)
    V[5, 0] = V[9, 1] = np.nan
    names = ["Ba_avg", "P_avg", "Ws_avg", "Va_avg", "Ot_avg", "Ya_avg", "Wa_avg"]
    minute, turbine = np.arange(N) * 200, np.arange(N) % 4
    table = SETS["wind_scada_lhb"][1](
        {"V": V, "columns": np.array(names), "minute": minute, "turbine": turbine}, 0
    )
    assert table.X.shape == (N - 2, 6 + 2 + 4)
    keep = np.delete(np.arange(N), [5, 9])
    assert_array_equal(table.Y, V[keep, 1])
    assert_array_equal(table.X[:, :6], V[keep][:, [0, 2, 3, 4, 5, 6]])
    hour = 2 * np.pi * minute[keep] / 1440
    assert_allclose(table.X[:, 6:8], np.column_stack([np.sin(hour), np.cos(hour)]), atol=1e-6)
    assert_array_equal(table.X[:, 8:].argmax(1), turbine[keep])


def test_flights(tmp_path):
    file = {
        "minute": np.array([0, 1441, 7 * 1440 + 3]),
        "delay": np.array([1, -2, 3], np.int16),
        "distance": np.array([100, 200, 300], np.int16),
        "origin": np.array([0, 1, 0], np.uint8),
        "dest": np.array([1, 0, 0], np.uint8),
        "airport_latlon": np.array([[10, 20], [30, 40]], np.float32),
    }
    X, y, *_ = SETS["flights_2001h1"][1](file, 0)
    assert_array_equal(X[1], [1441, 1, 1, 200, 30, 40, 10, 20])
    assert_array_equal(X[2, 1:3], [3, 0])
    assert_array_equal(y, [1, -2, 3])


def test_walker_predicts_the_next_velocities_within_an_episode(rng):
    length = np.array([3, 2])
    obs, observed = codes(rng, 7, 17, "obs")
    act, acted = codes(rng, 5, 6, "act")
    X, Y, *_ = SETS["walker2d"][1]({**obs, **act, "length": length}, 0)
    now = [0, 1, 2, 4, 5]
    assert_allclose(X, np.hstack([observed[now], acted]), rtol=1e-5)
    assert_allclose(Y, observed[[1, 2, 3, 5, 6]][:, 8:], rtol=1e-5)


def test_sixteen_bits(tmp_path, rng):
    x, X = codes(rng, N, 21, "X")
    y, Y = codes(rng, N, 7, "Y")
    write(tmp_path, "kuka", **x, **y)
    split = load("kuka", 0, tmp_path)
    train = np.sort(np.random.default_rng(0).permutation(N)[:36])
    assert_allclose(raw(split, X, Y, train), np.hstack([X, Y])[train], rtol=1e-9)


def test_files_that_are_missing_or_of_another_form(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"kin40k: no file .*--data"):
        load("kin40k", 0, tmp_path)
    write(tmp_path, "kin40k", X=np.ones((3, 1)), target=np.ones(3))
    with pytest.raises(ValueError, match="has no array 'fold'; it has X, target"):
        load("kin40k", 0, tmp_path)
    (tmp_path / "uci10" / "kin40k.npz").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="is no NumPy archive"):
        load("kin40k", 0, tmp_path)
