"""MUJOCO1 and MUJOCO2 against a loop over episodes that is easy to believe."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.paper.walks import Walks, load_walks, transitions


def some_walks(lengths=(4, 1, 7)):
    rng = np.random.default_rng(0)
    frames = sum(lengths)
    return Walks(
        rng.normal(size=(frames + len(lengths), 17)).astype(np.float32),
        rng.normal(size=(frames, 6)).astype(np.float32),
        np.array(lengths),
    )


def naive(walks, frames, change):
    inputs, targets, first_obs, first_act = [], [], 0, 0
    for length in walks.length:
        obs = walks.obs[first_obs : first_obs + length + 1]
        act = walks.act[first_act : first_act + length]
        for t in range(frames - 1, length):
            row = [*obs[t], *act[t]]
            if frames == 2:
                row += [*obs[t - 1], *act[t - 1]]
            inputs.append(row)
            targets.append(obs[t + 1, 8:] - obs[t, 8:] if change else obs[t + 1, 8:])
        first_obs, first_act = first_obs + length + 1, first_act + length
    return np.array(inputs), np.array(targets)


@pytest.mark.parametrize("frames", [1, 2])
@pytest.mark.parametrize("change", [False, True])
def test_transitions_are_those_of_a_loop_over_episodes(frames, change):
    walks = some_walks()
    X, Y = transitions(walks, frames, change)
    expected_X, expected_Y = naive(walks, frames, change)
    assert X.shape == (12 if frames == 1 else 9, 23 * frames)
    assert Y.shape[1] == 9
    np.testing.assert_array_equal(X, expected_X)
    np.testing.assert_array_equal(Y, expected_Y)


def test_no_row_reaches_into_another_episode():
    lengths = (5, 3, 6)
    walks = some_walks(lengths)
    obs = np.repeat(np.arange(3), np.array(lengths) + 1)[:, None] * np.ones((1, 17))
    act = np.repeat(np.arange(3), lengths)[:, None] * np.ones((1, 6))
    X, Y = transitions(Walks(obs, act, walks.length), 2)
    assert (X[:, :1] == X).all()
    assert (X[:, :1] == Y).all()


def test_other_numbers_of_frames_are_refused():
    with pytest.raises(ValueError, match="frames must be 1"):
        transitions(some_walks(), 3)


def test_files_with_floats_and_with_16_bits_are_read(tmp_path: Path):
    walks = some_walks()
    np.savez(tmp_path / "plain.npz", **walks._asdict())
    arrays = {"length": walks.length}
    for name in ("obs", "act"):
        table = getattr(walks, name).astype(float)
        lo, step = table.min(0), (table.max(0) - table.min(0)) / 65535
        q = np.rint((table - lo) / step).astype(np.uint16)
        arrays |= {f"{name}_lo": lo, f"{name}_step": step, f"{name}_q": q}
    np.savez(tmp_path / "small.npz", **arrays)
    np.testing.assert_array_equal(load_walks(tmp_path / "plain.npz").obs, walks.obs)
    np.testing.assert_allclose(load_walks(tmp_path / "small.npz").act, walks.act, atol=1e-4)


def test_lengths_that_do_not_add_up_are_refused(tmp_path: Path):
    walks = some_walks()
    np.savez(tmp_path / "bad.npz", obs=walks.obs, act=walks.act[1:], length=walks.length)
    with pytest.raises(ValueError, match="add up to 12 frames"):
        load_walks(tmp_path / "bad.npz")
