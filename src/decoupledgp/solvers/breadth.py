"""Functions of a prior should not be much wider than the targets over all rows.

The evidence of neighbourhoods sees slopes, not how far a function goes: with length-scales that all outputs
share, an output that is steeper than the others is best explained by a scale many times its variance,
and extrapolates wildly. Pairs of rows from anywhere set that right: over them ½ E(f(x) - f(x'))² is
what the prior expects and ½ (y - y')² what was seen.
"""

from __future__ import annotations

import numpy as np
import torch
from gpytorch.kernels import ScaleKernel
from torch import Tensor

from decoupledgp.solvers.rows import Rows

__all__ = ["Breadth"]

PAIRS = 1024
"""Pairs of rows, at most."""


class Breadth:
    """A penalty on priors whose functions are wider than the targets.

    The pairs are the same for the same number of rows.
    """

    def __init__(self, rows: Rows):
        pairs = np.random.default_rng(0).permutation(len(rows))[: 2 * PAIRS]
        pairs = pairs[: len(pairs) // 2 * 2].reshape(2, -1)
        self.one, self.other = (rows.take(part) for part in pairs)
        seen = (self.one.y - self.other.y).square().mean(0) / 2
        self.varied = torch.isfinite(seen) & (seen > 0)
        self.seen = seen[self.varied]

    def __call__(self, kernel: ScaleKernel) -> Tensor:
        """Return log² of expected over seen where that is above one, averaged over outputs."""
        if not len(self.seen):
            return self.seen.new_zeros(())
        base, x, z = kernel.base_kernel, self.one.x, self.other.x
        spread = (base(x, x, diag=True) + base(z, z, diag=True)) / 2 - base(x, z, diag=True)
        ratio = (
            kernel.outputscale.expand(self.varied.shape)[self.varied] * spread.mean() / self.seen
        )
        return ratio.clamp_min(1).log().square().mean()
