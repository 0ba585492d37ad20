"""The multiscale basis: generalized SE-ARD functions with length-scales of their own (Walder 2008)."""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float, Int
from torch import Tensor, nn

from decoupledgp.bases.base import Basis, grow
from decoupledgp.bases.functions import SEFunctions
from decoupledgp.kernels import is_se_ard

__all__ = ["MultiscaleBasis"]


class MultiscaleBasis(Basis):
    """Functions with locations z (M, D) and length-scales l_md = s_d c_md; log c is what is learnt."""

    def __init__(
        self, locations: Float[Tensor, "m d"], multipliers: Float[Tensor, "m d"] | None = None
    ):
        super().__init__()
        self.locations = nn.Parameter(locations.detach().clone())
        c = torch.ones_like(locations) if multipliers is None else multipliers
        self.log_multipliers = nn.Parameter(c.detach().log())

    @property
    def multipliers(self) -> Float[Tensor, "m d"]:
        """The length-scale multipliers c > 0."""
        return self.log_multipliers.exp()

    def at(self, kernel: Kernel) -> SEFunctions:
        """Return the functions; they live in the SE-ARD kernel's RKHS only."""
        if not is_se_ard(kernel):
            raise ValueError(
                f"the multiscale basis belongs to the SE-ARD kernel, not to {type(kernel).__name__}; "
                'use basis="points" with this kernel, or kernel=None'
            )
        s = kernel.lengthscale.squeeze(0).expand(self.n_features)
        return SEFunctions(self.locations, s, (self.log_multipliers + s.log()).exp())

    def add(self, x: Float[Tensor, "n d"]) -> None:
        """Append functions at x with c = 1, which equal φ_x."""
        old, shape = len(self), (len(self) + len(x), self.n_features)
        self.locations = grow(self.locations, shape)
        self.locations.data[old:] = x
        self.log_multipliers = grow(self.log_multipliers, shape)

    def take(self, index: Int[Tensor, " s"]) -> MultiscaleBasis:
        """Return a new basis of some of the functions."""
        return MultiscaleBasis(
            torch.index_select(self.locations, 0, index),
            torch.index_select(self.multipliers, 0, index),
        )
