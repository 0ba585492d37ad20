"""Measurements in processes of their own, so that peak memory belongs to one of them."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from typing import Any


def measure_apart(
    function: Callable[..., Any], *arguments: Any, cores: Sequence[int] | None = None
) -> Any:
    """Call a function of a module in a fresh interpreter and return its result.

    Given `cores`, that interpreter runs on these alone, with a thread for each.
    """
    context = get_context("spawn")
    with ProcessPoolExecutor(
        1, mp_context=context, initializer=_set_up_child, initargs=(cores,)
    ) as pool:
        return pool.submit(function, *arguments).result()


def shares_of_cores(count: int) -> list[list[int]]:
    """Divide the cores that this process may use into equal parts; what is left over stays idle.

    Cores are as the system numbers them: where it counts hardware threads, so does this. Linux only.
    """
    if not hasattr(os, "sched_getaffinity"):
        raise ValueError("this system does not let a process choose its cores")
    cores = sorted(os.sched_getaffinity(0))
    if not 1 <= count <= len(cores):
        raise ValueError(f"must be from 1 to the {len(cores)} cores that there are")
    size = len(cores) // count
    return [cores[k * size : (k + 1) * size] for k in range(count)]


def peak_megabytes() -> float:
    """Return the peak resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _set_up_child(cores: Sequence[int] | None) -> None:
    """Keep to some cores, and see to it that this process ends with its parent."""
    _end_with_parent()
    if cores is not None:
        os.sched_setaffinity(0, cores)  # first: libraries start their threads when they are loaded
        import torch

        torch.set_num_threads(len(cores))


def _end_with_parent() -> None:
    """End this process when its parent is killed: left over, it would slow down what runs next."""
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_wait_for, args=(parent.sentinel,), daemon=True).start()


def _wait_for(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
