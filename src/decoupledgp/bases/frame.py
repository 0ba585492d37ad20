"""Where distances are taken from: products of coordinates give them, if these are moderate numbers."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["Frame"]

FAR_IN_FLOAT32 = 1e3
"""Squared distance from the basis' centre, in length-scales, beyond which a product of float32
numbers would have an error over 1e-4 in the exponent; the features are float64 then."""

FARTHEST = 1e6
"""Length-scales from the centre at which rows and functions are put if they are even farther: there
float64 still gives squared distances to 1e-3, and everything nearer is infinitely far for a kernel."""


class Frame:
    """The middle of some places z, and the length-scales s."""

    def __init__(self, z: Float[Tensor, "m d"], s: Float[Tensor, " d"]):
        # Distances do not care where the origin is, but products of large numbers do.
        self.origin = z.detach().mean(0) if len(z) else torch.zeros_like(s.detach())
        self.s, self.edge = s, FARTHEST * s.detach()

    def centre(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Move x to the origin, and no farther than float64 can tell distances."""
        return (x - self.origin).clamp(-self.edge, self.edge)

    @torch.no_grad()
    def reach(self, z: Float[Tensor, "m d"]) -> float:
        """Return the largest squared distance of places from the origin, in length-scales."""
        if z.is_meta or not len(z):
            return 0.0
        return float(((z - self.origin) / self.s).square().sum(1).max())

    @torch.no_grad()
    def is_too_wide(self, z: Float[Tensor, "m d"], squares: Float[Tensor, "*m d"]) -> bool:
        """Whether places in float32 are too far from the origin, in units of which the squares are given."""
        if z.dtype != torch.float32 or z.is_meta or not len(z):
            return False
        return float(((z - self.origin).square() / squares).sum(1).max()) > FAR_IN_FLOAT32

    def places(self, z: Float[Tensor, "m d"]) -> Float[Tensor, "m d"]:
        """Move functions to the origin; those in float32 are near it."""
        return self.centre(z) if z.dtype == torch.float64 else z - self.origin

    def functions(
        self, z: Float[Tensor, "m d"]
    ) -> tuple[Float[Tensor, "m d+1"], Float[Tensor, " m"]]:
        """Return G and b of points z: with F of `rows`, F Gᵀ + 1 bᵀ is -r²/2 for distances r."""
        scaled = self.places(z) / self.s.to(z.dtype)
        return torch.cat([scaled, scaled.new_ones(len(z), 1)], 1), -0.5 * scaled.square().sum(1)

    def rows(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d+1"]:
        """Return F of rows x."""
        scaled = self.centre(x) / self.s
        return torch.cat([scaled, -0.5 * scaled.square().sum(1, keepdim=True)], 1)
