"""Inverse dynamics of a simulated seven-joint arm: a stand-in for the paper's KUKA1 and KUKA2.

    python -m benchmarks.generate.kuka [--seed 11] [--out out/data/sim/kuka_iiwa_sim1.npz]

Needs MuJoCo: `pip install 'decoupledgp[robots]'`. The arm is `iiwa.xml`. As many rows as the published
sets: 10 slow segments of 1,756 rows (the offline part) and 180 of 1,002, at 200 Hz. In each, every
joint moves by three harmonics of the segment's frequency with random offset, size and phase. The file
has `X` (7 positions, velocities, accelerations), `Y` (7 torques over 40, 40, 20, 20, 4, 4, 2 Nm),
`segment` and `n_offline`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Motion", "friction", "generate", "load_arm", "rhythmic", "torques"]

ARM = Path(__file__).with_name("iiwa.xml")
RATE = 200.0
"""Rows per second."""
OFFLINE, ONLINE = (10, 1756), (180, 1002)
"""Segments and rows of each."""
TORQUE_SCALE = np.array([40.0, 40.0, 20.0, 20.0, 4.0, 4.0, 2.0])
POSITION_NOISE = 2e-4
"""Standard deviation in rad."""
RELATIVE_NOISE = {"velocity": 0.01, "acceleration": 0.03, "torque": 0.03}
"""Standard deviations as shares of the signal's own."""
COULOMB, STATIC, VISCOUS = 0.05 * TORQUE_SCALE, 0.08 * TORQUE_SCALE, 0.05 * TORQUE_SCALE
"""Friction in Nm, of sliding and of breaking loose; viscous in Nm s/rad. Assumed, not measured."""
STRIBECK_SPEED, SIGN_SPEED = 0.1, 0.01
"""Speeds in rad/s over which static friction fades, and over which friction changes its sign."""


class Motion(NamedTuple):
    """Positions, velocities and accelerations of the joints, each (n, 7)."""

    q: np.ndarray
    qd: np.ndarray
    qdd: np.ndarray


def load_arm() -> Any:
    """Return the arm as a MuJoCo model."""
    import mujoco

    return mujoco.MjModel.from_xml_path(str(ARM))


def rhythmic(rows: int, slow: bool, limits: np.ndarray, rng: np.random.Generator) -> Motion:
    """Return one segment: x(t) = offset + Σ_k size_k sin(k ω t + phase_k) per joint, k = 1, 2, 3.

    The segment's frequency is 0.06 to 0.12 Hz if it is slow, else 0.06 to 0.24 Hz. No joint comes
    nearer to its limit than a tenth of its range.
    """
    time = np.arange(rows)[:, None] / RATE
    omega = 2 * np.pi * rng.uniform(0.06, 0.12 if slow else 0.24)
    joints = len(limits)
    offset = rng.uniform(-0.4, 0.4, joints) * limits
    size = rng.dirichlet([2.0, 1.0, 0.5], joints).T * rng.uniform(0.2, 0.5, joints) * limits
    phase = rng.uniform(0, 2 * np.pi, (3, joints))
    motion = Motion(*(np.zeros((rows, joints)) for _ in range(3)))
    motion.q[:] = offset
    for k in range(3):
        w = (k + 1) * omega
        angle = w * time + phase[k]
        motion.q[:] += size[k] * np.sin(angle)
        motion.qd[:] += size[k] * w * np.cos(angle)
        motion.qdd[:] -= size[k] * w**2 * np.sin(angle)
    return motion


def friction(qd: np.ndarray) -> np.ndarray:
    """Return Coulomb, Stribeck and viscous friction in Nm for joint velocities (n, 7)."""
    dry = COULOMB + (STATIC - COULOMB) * np.exp(-np.square(qd / STRIBECK_SPEED))
    return dry * np.tanh(qd / SIGN_SPEED) + VISCOUS * qd


def torques(arm: Any, motion: Motion) -> np.ndarray:
    """Return the torques (n, 7) in Nm that make the rigid arm move like this, without friction."""
    import mujoco

    data, result = mujoco.MjData(arm), np.empty_like(motion.q)
    for row, (q, qd, qdd) in enumerate(zip(*motion, strict=True)):
        data.qpos[:], data.qvel[:], data.qacc[:] = q, qd, qdd
        mujoco.mj_inverse(arm, data)
        result[row] = data.qfrc_inverse
    return result


def generate(
    seed: int, offline: tuple[int, int] = OFFLINE, online: tuple[int, int] = ONLINE
) -> dict[str, np.ndarray]:
    """Return the arrays of the file."""
    arm, rng = load_arm(), np.random.default_rng(seed)
    limits = arm.jnt_range[:, 1]
    lengths = [offline[1]] * offline[0] + [online[1]] * online[0]
    parts = [
        rhythmic(rows, number < offline[0], limits, rng) for number, rows in enumerate(lengths)
    ]
    motion = Motion(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    tau = torques(arm, motion) + friction(motion.qd)

    def noisy(table: np.ndarray, kind: str) -> np.ndarray:
        return table + RELATIVE_NOISE[kind] * table.std(0) * rng.standard_normal(table.shape)

    q = motion.q + POSITION_NOISE * rng.standard_normal(motion.q.shape)
    X = np.hstack([q, noisy(motion.qd, "velocity"), noisy(motion.qdd, "acceleration")])
    return {
        "X": X.astype(np.float32),
        "Y": (noisy(tau, "torque") / TORQUE_SCALE).astype(np.float32),
        "segment": np.repeat(np.arange(len(lengths)), lengths).astype(np.int16),
        "n_offline": np.array(offline[0] * offline[1]),
    }


def main() -> None:
    """Write the file and say what is in it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--out", type=Path, default=Path("out/data/sim/kuka_iiwa_sim1.npz"))
    options = parser.parse_args()
    arrays = generate(options.seed)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(options.out, **arrays)  # type: ignore[arg-type]
    spread = ", ".join(f"{value:.2f}" for value in arrays["Y"].std(0))
    print(f"{options.out}: {len(arrays['X']):,} rows; standard deviations of Y: {spread}")


if __name__ == "__main__":
    main()
