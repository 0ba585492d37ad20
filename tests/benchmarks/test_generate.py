"""The simulated robots, where MuJoCo is installed."""

import numpy as np
import pytest

from benchmarks.generate import kuka
from benchmarks.generate.walker2d import Policy


def test_velocities_and_accelerations_are_derivatives_of_positions():
    motion = kuka.rhythmic(400, False, np.full(7, 2.0), np.random.default_rng(0))
    step = 1 / kuka.RATE
    np.testing.assert_allclose(
        np.gradient(motion.q, step, axis=0)[1:-1], motion.qd[1:-1], atol=1e-2
    )
    np.testing.assert_allclose(
        np.gradient(motion.qd, step, axis=0)[1:-1], motion.qdd[1:-1], atol=3e-2
    )
    assert np.abs(motion.q).max() <= 0.9 * 2.0


def test_friction_opposes_nothing_at_rest_and_grows_with_speed():
    speed = np.array([0, 0.05, 1.0, 3.0])[:, None] * np.ones(7)
    drag = kuka.friction(speed)
    assert (drag[0] == 0).all()
    np.testing.assert_allclose(kuka.friction(-speed), -drag)
    assert (drag[3] > drag[2]).all()
    assert (drag[1] > kuka.COULOMB).all()  # Stribeck: slow sliding sticks more


def test_torques_at_rest_are_the_slope_of_the_potential_energy():
    mujoco = pytest.importorskip("mujoco")
    arm = kuka.load_arm()
    data = mujoco.MjData(arm)

    def energy(q):
        data.qpos[:] = q
        mujoco.mj_kinematics(arm, data)
        mujoco.mj_comPos(arm, data)
        return 9.81 * float(arm.body_mass @ data.xipos[:, 2])

    q = np.random.default_rng(0).uniform(-1, 1, 7)
    still = np.zeros((1, 7))
    gravity = kuka.torques(arm, kuka.Motion(q[None], still, still))[0]
    h = 1e-5 * np.eye(7)
    slope = np.array([energy(q + one) - energy(q - one) for one in h]) / 2e-5
    np.testing.assert_allclose(gravity, slope, atol=1e-6)
    assert np.abs(gravity[1]) > 1


def test_the_file_has_the_shape_of_the_published_one():
    pytest.importorskip("mujoco")
    arrays = kuka.generate(0, offline=(2, 30), online=(3, 20))
    assert arrays["X"].shape == (120, 21)
    assert arrays["Y"].shape == (120, 7)
    assert arrays["n_offline"] == 60
    np.testing.assert_array_equal(np.bincount(arrays["segment"]), [30, 30, 20, 20, 20])
    np.testing.assert_array_equal(arrays["X"], kuka.generate(0, (2, 30), (3, 20))["X"])
    segments, rows = zip(kuka.OFFLINE, kuka.ONLINE, strict=True)
    assert np.dot(segments, rows) == 197_920


def test_the_policy_is_repeatable_and_bounded():
    policy, rng = Policy(), np.random.default_rng(0)
    action = policy.draw(np.zeros(17), rng)
    assert action.shape == (6,)
    assert np.abs(policy.limited(10 * action)).max() <= 1


def test_first_trajectories_do_not_depend_on_how_many_follow(monkeypatch):
    pytest.importorskip("mujoco")
    gymnasium = pytest.importorskip("gymnasium")
    from benchmarks.generate.walker2d import gather

    make = gymnasium.make
    monkeypatch.setattr(
        gymnasium, "make", lambda name, **options: make(name, max_episode_steps=15, **options)
    )
    one, two = gather(1, 5), gather(2, 5)
    assert one["length"][0] == two["length"][0] == 15
    np.testing.assert_array_equal(one["obs"], two["obs"][:16])
    assert not np.array_equal(two["act"][:15], two["act"][15:])
    assert two["obs"].shape == (32, 17)
