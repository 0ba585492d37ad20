"""The Cholesky factor of a Gram matrix that may be singular to rounding."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["safe_cholesky"]

JITTER = 1e-8
"""Added to the diagonal of a Gram matrix of functions of about unit length; ten times as much after
every failure. Always added, unlike `linear_operator.utils.cholesky.psd_safe_cholesky`'s, so that the
objective does not jump between points where it is needed and points where it is not."""


def safe_cholesky(K: Float[Tensor, "m m"]) -> Float[Tensor, "m m"]:
    """Return a Cholesky factor of K plus as little jitter as it takes."""
    eye = torch.eye(len(K)).to(K)
    jitter = JITTER
    while jitter < 1e-3:
        factor, failed = torch.linalg.cholesky_ex(K + jitter * eye)
        if not failed:
            return factor
        jitter *= 10
    return torch.linalg.cholesky(K + jitter * eye)
