"""Rows to learn from, in standardised units, with what is known of each one's noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["Rows"]


@dataclass
class Rows:
    """Inputs and targets; a row's noise has the variance (σ² + known) / weight.

    A weight of two is a row with half the noise variance. `known` is a variance that is known
    beforehand, beside the learnt σ².
    """

    x: Float[Tensor, "n d"]
    y: Float[Tensor, "n p"]
    weights: Float[Tensor, " n"]
    known: Float[Tensor, "n p"]

    @classmethod
    def plain(cls, x: Float[Tensor, "n d"], y: Float[Tensor, "n p"]) -> Rows:
        """Return rows that are all alike."""
        return cls(x, y, x.new_ones(1).expand(len(x)), y.new_zeros(1, 1).expand(y.shape))

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: np.ndarray | slice) -> Rows:
        """Return some of the rows."""
        chosen = index if isinstance(index, slice) else torch.from_numpy(index).to(self.x.device)
        return Rows(self.x[chosen], self.y[chosen], self.weights[chosen], self.known[chosen])

    def noise(self, learnt: Float[Tensor, " p"]) -> Float[Tensor, "n p"]:
        """Return the variance of every row's noise."""
        return (learnt + self.known) / self.weights[:, None]
