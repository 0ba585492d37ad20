"""What is to be run: jobs that are not in the results yet, one after the other or side by side."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from itertools import groupby, product, takewhile
from typing import Any

from benchmarks.machine import commit, describe
from benchmarks.paper.data import Sources, load, outputs_of
from benchmarks.paper.protocol import PROTOCOLS, Protocol
from benchmarks.paper.records import Key, Records
from benchmarks.paper.systems import SYSTEMS
from benchmarks.processes import peak_megabytes
from decoupledgp.data import Split

__all__ = ["Job", "Measure", "measure", "run", "run_together", "wanted"]


@dataclass(frozen=True)
class Job:
    """One model to learn: a system on one output of a set, or on several at once."""

    data: str
    outputs: tuple[int, ...]
    system: str
    seed: int
    size: str
    seconds: float | None = None
    together: int = 1
    """How many are learnt at a time, each with its share of the cores."""

    def key(self, output: int) -> Key:
        """Return the key of one of its results."""
        return Key(self.data, output, self.system, self.seed, self.size)

    def __str__(self) -> str:
        outputs = ", ".join(f"Y_{output}" for output in self.outputs)
        return f"{self.data} {outputs} {self.system} seed {self.seed} ({self.size})"


Measure = Callable[[Job], list[dict[str, Any]]]
"""Learns and returns one record per output."""


def wanted(
    sets: Iterable[str],
    systems: Iterable[str],
    outputs: Sequence[int] | None,
    seeds: Iterable[int],
    protocol: Protocol,
    together: int = 1,
) -> Iterator[Job]:
    """Yield all jobs: per set and seed first output by output, then systems that get all at once.

    Systems are in the order of `SYSTEMS`, so that a run cut short has outputs to compare them on.
    """
    chosen = outputs or protocol.outputs
    for data in sets:
        numbers = tuple(k for k in outputs_of(data) if chosen is None or k in chosen)
        for seed in seeds:
            names = [name for name in SYSTEMS if name in set(systems)]
            alone = [name for name in names if not SYSTEMS[name].joint]
            for number, system in product(numbers, alone):
                yield Job(data, (number,), system, seed, protocol.name, together=together)
            for system in (name for name in names if SYSTEMS[name].joint and numbers):
                yield Job(data, numbers, system, seed, protocol.name, together=together)


def run_together(jobs: Iterable[Job], records: Records, measures: Sequence[Measure]) -> list[str]:
    """Do the jobs of several outputs at the same time, an output for each of the measures.

    The jobs of an output stay together and in order: its systems are measured alike. After Ctrl-C, or an
    error that is none of a model's, no further job begins.
    """
    stop = threading.Event()
    waiting = deque(
        list(group) for _, group in groupby(jobs, lambda job: (job.data, job.seed, job.outputs))
    )

    def work(measure: Measure) -> list[str]:
        problems: list[str] = []
        try:
            while True:
                try:
                    group = waiting.popleft()
                except IndexError:
                    return problems
                problems += run(takewhile(lambda _: not stop.is_set(), group), records, measure)
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(len(measures)) as pool:
        try:
            return [problem for problems in pool.map(work, measures) for problem in problems]
        except BaseException:
            stop.set()
            raise


def run(jobs: Iterable[Job], records: Records, measure: Measure) -> list[str]:
    """Do every job that has no results yet and write them down; return what went wrong."""
    problems = []
    for job in jobs:
        missing = tuple(output for output in job.outputs if job.key(output) not in records)
        if not missing:
            continue
        job = replace(job, outputs=missing)
        if SYSTEMS[job.system].timed:
            try:
                job = replace(job, seconds=svdgp_seconds(job, records))
            except ValueError as error:
                problems.append(f"{job}: {error}")
                print(problems[-1], flush=True)
                continue
        start = time.perf_counter()
        try:
            results = measure(job)
        except Exception as error:  # hours of other jobs wait behind this one
            problems.append(f"{job}: {type(error).__name__}: {error}")
            print(problems[-1], flush=True)
            continue
        for result in results:
            records.add(result)
        errors = ", ".join(f"{result['nmse']:.4f}" for result in results)
        print(f"{job}: nMSE {errors}; {time.perf_counter() - start:.0f} s", flush=True)
    return problems


def svdgp_seconds(job: Job, records: Records) -> float:
    """Return what SVDGP took for these outputs in all; raise a ValueError if it was not run so for all."""
    seconds = 0.0
    for output in job.outputs:
        record = records.get(job.key(output)._replace(system="svdgp"))
        if record is None:
            raise ValueError("needs the seconds of svdgp on the same outputs; run it first")
        together = record.get("together", 1)
        if together != job.together:
            raise ValueError(
                f"the seconds of svdgp are of {together} at a time; use --together {together}, or delete "
                "its line"
            )
        seconds += record["seconds"]
    return seconds


_loaded = lru_cache(maxsize=1)(load)
"""The last set stays in memory, for jobs that share a process."""


def measure(sources: Sources, job: Job) -> list[dict[str, Any]]:
    """Load the data, learn, and return one record per output."""
    protocol, code = PROTOCOLS[job.size], commit()
    split = _loaded(job.data, job.seed, sources, protocol.max_rows)
    columns = [output - 1 for output in job.outputs]
    split = Split(split.X_train, split.y_train[:, columns], split.X_test, split.y_test[:, columns])
    results = SYSTEMS[job.system].run(split, protocol, job.seed, job.seconds)
    about = {
        "n_train": len(split.X_train),
        "n_test": len(split.X_test),
        "megabytes": round(peak_megabytes()) if protocol.apart else None,
        "date": date.today().isoformat(),
        "machine": describe(),
        "together": job.together,
        "commit": code,
    }
    return [
        {**job.key(output)._asdict(), **result, **about}
        for output, result in zip(job.outputs, results, strict=True)
    ]
