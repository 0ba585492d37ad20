"""How many rows to learn from, and with how many functions, where there is not time for all.

The work allows all rows with few functions, or fewer rows with a function each, or something between.
Few functions blur f, few rows leave it noisy. What each choice would leave unknown of f can be told from
the kernel and the noise: m functions learnt from n rows of noise σ² know about as much as m rows of noise
σ² m/n, and the mean posterior variance of as many rows as are quickly solved for, extended by its power
law, is that of m.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from gpytorch.kernels import Kernel, ScaleKernel
from jaxtyping import Float
from torch import Tensor

from decoupledgp.kernels import prior_diagonal
from decoupledgp.ops import safe_cholesky
from decoupledgp.ops.generic import kernel_dense

__all__ = ["Share", "best_share", "left_unknown"]

PILOT = 512
"""Rows whose posterior variance is computed; fewer for several outputs."""

ASKED = 512
"""Further rows at which it is averaged."""

STEEPEST = -1.0
"""The power of a variance that only noise keeps from zero; steeper ones do not last."""


class Share(NamedTuple):
    """Rows to learn from, and functions to do it with."""

    rows: int
    functions: int


@torch.no_grad()
def best_share(
    kernel: ScaleKernel,
    x: Float[Tensor, "n d"],
    noise: Float[Tensor, " p"],
    shares: Sequence[Share],
) -> Share:
    """Return the share that leaves least unknown of all outputs; x is in random order.

    The noise is relative to the kernel's scales. Time O(PILOT³) for every share.
    """
    scales = kernel.outputscale.expand(len(noise)).tolist()
    pilot = int(PILOT / len(noise) ** (1 / 3))

    def unknown(share: Share) -> float:
        parts = (left_unknown(kernel.base_kernel, x, n, share, pilot) for n in noise.tolist())
        return sum(scale * part for scale, part in zip(scales, parts, strict=True))

    return min(shares, key=unknown)


@torch.no_grad()
def left_unknown(
    kernel: Kernel, x: Float[Tensor, "n d"], noise: float, share: Share, pilot: int = PILOT
) -> float:
    """Return what m functions learnt from n rows leave of the variance of f, about."""
    noise *= share.functions / share.rows
    pilot = min(share.functions, pilot, len(x) // 2)
    asked, x = x[pilot:][:ASKED], x[:pilot]
    whole, half = (_variance(kernel, x[: pilot // k], asked, noise) for k in (1, 2))
    slope = min(max(torch.log2(whole / half).item(), STEEPEST), 0.0)
    return whole.item() * (share.functions / pilot) ** slope


def _variance(kernel: Kernel, x: Tensor, asked: Tensor, noise: float) -> Tensor:
    """Return the mean posterior variance of f at the rows asked for."""
    gram = kernel_dense(kernel, x, x)
    gram.diagonal().add_(noise)
    U = torch.linalg.solve_triangular(
        safe_cholesky(gram), kernel_dense(kernel, x, asked), upper=False
    )
    left = prior_diagonal(kernel, asked) - U.square().sum(0)
    return left.mean().clamp_min(1e-12)
