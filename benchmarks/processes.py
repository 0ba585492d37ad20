"""Measurements in processes of their own, so that peak memory belongs to one of them."""

from __future__ import annotations

import resource
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any


def measure_apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of a module in a fresh interpreter and return its result."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def peak_megabytes() -> float:
    """Return the peak resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
