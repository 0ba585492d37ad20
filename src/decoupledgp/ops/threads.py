"""Jobs on a pool of threads, each of which computes on one core.

PyTorch's own threads meet at a barrier after every operation; on blocks small enough for a core's
cache that costs more than it gains. Here a thread walks over its blocks alone. PyTorch and the
Numba loops release the interpreter lock while they compute.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

import torch

__all__ = ["lanes", "run_all"]

Result = TypeVar("Result")
Parts = TypeVar("Parts", list[slice], range)

LANES = 8
"""Sequences of parts that may run side by side."""

_inside = threading.local()


def run_all(
    jobs: Sequence[Callable[[], Result]], device: torch.device, *, in_turn: bool = False
) -> list[Result]:
    """Return the jobs' results, in order; on a CPU they run on as many threads as PyTorch may use.

    `in_turn` runs them one after the other, on PyTorch's own threads: for jobs that call GPyTorch, which
    writes to a kernel while it evaluates it.

    Gradients are off in the jobs: they belong inside an `autograd.Function`. A job that has jobs of
    its own runs them itself.
    """
    workers = torch.get_num_threads()
    alone = workers == 1 or len(jobs) == 1 or hasattr(_inside, "pool")
    if in_turn or alone or device.type != "cpu":
        with torch.no_grad():
            return [job() for job in jobs]
    return list(_pool(os.getpid(), workers).map(_without_gradients, jobs))


def lanes(parts: Parts) -> list[Parts]:
    """Deal parts out to lanes; these do not depend on the number of threads, so neither do sums."""
    return [parts[k::LANES] for k in range(min(LANES, len(parts)))]


def _without_gradients(job: Callable[[], Result]) -> Result:
    with torch.no_grad():
        return job()


@lru_cache(maxsize=1)
def _pool(pid: int, workers: int) -> ThreadPoolExecutor:
    """One pool per process and thread count: a forked child makes its own."""
    here = threading.Barrier(workers + 1)

    def start() -> None:
        _inside.pool = True
        torch.get_num_threads()  # else PyTorch's own set-up of this thread would undo the next line
        torch.set_num_threads(1)
        here.wait()

    pool = ThreadPoolExecutor(workers, thread_name_prefix="decoupledgp", initializer=start)
    for _ in range(workers):
        pool.submit(int)
    here.wait()
    torch.set_num_threads(workers)  # of the threads that others will start; ours keep their one
    return pool
