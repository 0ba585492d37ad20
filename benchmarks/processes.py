"""Measurements in processes of their own, so that peak memory belongs to one of them."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from typing import Any


def measure_apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of a module in a fresh interpreter and return its result."""
    context = get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=_end_with_parent) as pool:
        return pool.submit(function, *arguments).result()


def peak_megabytes() -> float:
    """Return the peak resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _end_with_parent() -> None:
    """End this process when its parent is killed: left over, it would slow down what runs next."""
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_wait_for, args=(parent.sentinel,), daemon=True).start()


def _wait_for(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
