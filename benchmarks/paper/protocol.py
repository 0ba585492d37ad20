"""How the experiments are done: the paper's sizes, and smaller ones to look at in minutes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.paper.published import SYSTEMS as PAPERS

__all__ = ["PROTOCOLS", "RATES", "Protocol"]

RATES = (0.1, 0.01, 0.001)
"""What γ_0 is chosen from."""

SMALL = "These are the sizes of “{}”, not the paper's: expect other numbers."


@dataclass(frozen=True)
class Protocol:
    """One version of the experiments; the numbers here are the paper's (section 4)."""

    name: str = "paper"
    note: str = ""
    """What a reader of its report must know."""
    iterations: int = 2000
    """T, minibatches of the online systems."""
    trial: int = 100
    """Iterations after which γ_0 and distances are chosen by the bound; too few would favour small steps."""
    distances: tuple[str, ...] = ("inputs", "rows")
    """The first length-scales that each system chooses from (`choice.DISTANCES`)."""
    batch_size: int = 1024
    """N_m."""
    increment: int = 128
    """N_Δ."""
    mean_basis: int = 128**2
    """M_α of SVDGP."""
    cov_basis: int = 128
    """M_β of SVDGP."""
    svi: int = 1024
    """M of SVI, and of GPyTorch's SVGP."""
    ivsgpr: int = 256
    vsgpr: int = 1024
    vsgpr_rows: int = 4096
    gpr_rows: int = 1024
    batch_iterations: int = 100
    """Iterations of conjugate gradient at most; the paper does not say how many it took."""
    batch_trial: int = 10
    """Iterations after which batch systems choose their first length-scales."""
    max_rows: int | None = None
    """Rows taken of a set, training and test together."""
    checkpoints: int = 20
    curve_rows: int = 4096
    """Test rows that a checkpoint looks at; the final numbers are of all."""
    sets: tuple[str, ...] = ("mujoco1", "kuka", "mujoco1-change", "mujoco2", "kuka1", "kuka2")
    systems: tuple[str, ...] = (*PAPERS, "defaults", "svgp", "boosting-timed", "boosting", "linear")
    outputs: tuple[int, ...] | None = None
    """Outputs that are learnt, from 1; None is all."""
    apart: bool = True
    """Whether every model is learnt in a process of its own, so that its peak memory is known."""

    def marks(self, iterations: int) -> list[int]:
        """Return the iterations at which a run is looked at: closer together at the beginning."""
        first = min(10, iterations)
        points = np.geomspace(first, iterations, self.checkpoints).round().astype(int)
        return sorted({int(point) for point in points})


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol(),
        Protocol(
            "paper-rows",
            "Here the length-scales of the paper's systems all begin at the median of the distances between "
            "rows, and “SVDGP, γ_0 = 0.1” is SVDGP without a choice of γ_0.",
            distances=("rows",),
            systems=(*PAPERS, "svdgp-0.1", "defaults", "svgp"),
        ),
        Protocol(
            "quick",
            SMALL.format("quick"),
            iterations=200,
            mean_basis=2048,
            svi=256,
            ivsgpr=128,
            vsgpr=256,
            vsgpr_rows=1024,
            gpr_rows=512,
            batch_iterations=30,
            max_rows=50_000,
            curve_rows=2048,
            sets=("mujoco1", "kuka"),
            outputs=(1, 9),
            apart=False,
        ),
        Protocol(
            "toy",
            SMALL.format("toy"),
            iterations=20,
            trial=5,
            batch_size=256,
            increment=64,
            mean_basis=512,
            cov_basis=32,
            svi=64,
            ivsgpr=32,
            vsgpr=32,
            vsgpr_rows=256,
            gpr_rows=128,
            batch_iterations=5,
            batch_trial=2,
            max_rows=4000,
            checkpoints=5,
            curve_rows=256,
            sets=("mujoco1", "kuka"),
            outputs=(1, 9),
            apart=False,
        ),
    )
}
"""By name. "toy" shows that everything runs; its numbers mean nothing."""
