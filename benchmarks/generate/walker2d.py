"""Walking trajectories of MuJoCo's Walker2d under a policy trained by TRPO: the paper's "Walking MuJoCo".

    python -m benchmarks.generate.walker2d [--trajectories 1000] [--seed 0]
                                           [--out out/data/sim/walker2d_trpo.npz]

Needs gymnasium and MuJoCo: `pip install 'decoupledgp[robots]'`. The file has `obs` (17 = 8 positions
and 9 velocities, clipped to ±10 as the environment does), `act` (6, as the policy drew them; the robot
gets them clipped to ±1), `length` and `ret`: trajectory i owns `length[i] + 1` consecutive rows of
`obs` and `length[i]` of `act`. Each trajectory has a generator of its own, so that the first five of a
thousand are those of a run of five. The motion is chaotic: another version of MuJoCo gives others.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

__all__ = ["POLICY", "Policy", "Trajectory", "gather", "walk"]

POLICY = Path(__file__).with_name("walker2d_trpo_policy.npz")
POSITIONS, VELOCITIES, ACTIONS = 8, 9, 6


class Policy:
    """A Gaussian policy: two layers of tanh give the mean action, its spread is the same everywhere."""

    def __init__(self, path: Path = POLICY):
        with np.load(path) as file:
            self.arrays = {name: file[name] for name in file.files}
        self.env_id = str(self.arrays["env_id"])

    def mean(self, observation: np.ndarray) -> np.ndarray:
        """Return the mean action."""
        p = self.arrays
        scale = np.sqrt(p["obs_var"] + p["obs_eps"])
        h = np.clip((observation - p["obs_mean"]) / scale, -p["obs_clip"], p["obs_clip"])
        h = np.tanh(p["W1"] @ h + p["b1"])
        h = np.tanh(p["W2"] @ h + p["b2"])
        return p["W3"] @ h + p["b3"]

    def draw(self, observation: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return an action, before the robot's limits."""
        spread = np.exp(self.arrays["log_std"])
        return self.mean(observation) + spread * rng.standard_normal(ACTIONS)

    def limited(self, action: np.ndarray) -> np.ndarray:
        """Return the action that the robot carries out."""
        return np.clip(action, self.arrays["act_low"], self.arrays["act_high"])


class Trajectory(NamedTuple):
    """One walk: an observation more than actions, and the sum of rewards."""

    obs: np.ndarray
    act: np.ndarray
    ret: float


def walk(env: Any, policy: Policy, rng: np.random.Generator) -> Trajectory:
    """Walk until the robot falls or the environment's time is over."""
    observation, _ = env.reset(seed=int(rng.integers(2**31)))
    observations, actions, total, over = [observation], [], 0.0, False
    while not over:
        action = policy.draw(observation, rng)
        observation, reward, fallen, late, _ = env.step(policy.limited(action))
        observations.append(observation)
        actions.append(action)
        total, over = total + float(reward), fallen or late
    return Trajectory(np.array(observations), np.array(actions), total)


def gather(trajectories: int, seed: int) -> dict[str, np.ndarray]:
    """Return the arrays of the file."""
    import gymnasium

    policy = Policy()
    env = gymnasium.make(policy.env_id)
    walks = [
        walk(env, policy, np.random.default_rng([seed, number])) for number in range(trajectories)
    ]
    env.close()
    return {
        "obs": np.concatenate([one.obs for one in walks]).astype(np.float32),
        "act": np.concatenate([one.act for one in walks]).astype(np.float32),
        "length": np.array([len(one.act) for one in walks], dtype=np.int32),
        "ret": np.array([one.ret for one in walks], dtype=np.float32),
    }


def main() -> None:
    """Write the file and say what is in it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/data/sim/walker2d_trpo.npz"))
    options = parser.parse_args()
    arrays = gather(options.trajectories, options.seed)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(options.out, **arrays)  # type: ignore[arg-type]
    length, ret = arrays["length"], arrays["ret"]
    print(
        f"{options.out}: {len(length):,} trajectories, {length.sum():,} frames, "
        f"mean length {length.mean():.1f}, mean return {ret.mean():.0f}"
    )


if __name__ == "__main__":
    main()
