"""Which code computes: the compiled CPU loops (Numba) where they can, PyTorch anywhere else."""

from __future__ import annotations

import importlib.util
import logging
import time
from functools import lru_cache

import torch
from torch import Tensor

__all__ = ["exp_in_place", "use_numba"]

log = logging.getLogger(__name__)


def use_numba(example: Tensor) -> bool:
    """Whether tensors like this one go to the loops of `fused.py`."""
    return (
        example.device.type == "cpu"
        and example.dtype in (torch.float32, torch.float64)
        and _numba_ready()
    )


def exp_in_place(block: Tensor) -> Tensor:
    """Replace a contiguous block by its exponential, on the calling thread if on a CPU."""
    if not use_numba(block):
        return block.exp_()
    from decoupledgp.ops import fused

    fused.exp_in_place(block.view(-1).numpy())
    return block


@lru_cache(maxsize=1)
def _numba_ready() -> bool:
    """Import and compile once per process; Numba keeps the compiled loops on disk for the next one."""
    if importlib.util.find_spec("numba") is None:
        return False
    start = time.perf_counter()
    from decoupledgp.ops import fused

    fused.warm_up()
    seconds = time.perf_counter() - start
    if fused.compiled_now() and seconds > 1:
        log.warning("compiled the CPU loops in %.1f s; the result is cached on disk", seconds)
    return True
