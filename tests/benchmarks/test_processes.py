"""Measurements apart from one another, in processes that do not outlive the one that asked for them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks.processes import measure_apart, shares_of_cores

ROOT = Path(__file__).parents[2]
ASK = """
import os, sys, time
from benchmarks.processes import measure_apart
def work(path):
    open(path, "w").write(str(os.getpid()))
    time.sleep(60)
"""


def test_a_result_comes_from_another_process():
    assert measure_apart(os.getpid) != os.getpid()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen here")
def test_a_process_keeps_to_the_cores_that_it_is_given():
    here = os.sched_getaffinity(0)
    shares = shares_of_cores(len(here))
    assert {len(share) for share in shares} == {1}
    assert {core for share in shares for core in share} == here
    share = shares[-1]
    assert measure_apart(os.sched_getaffinity, 0, cores=share) == set(share)
    assert measure_apart(torch.get_num_threads, cores=share) == 1
    for count in (0, 100_000):
        with pytest.raises(ValueError, match="must be from 1 to the"):
            shares_of_cores(count)


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at /proc")
def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path):
    (tmp_path / "asker.py").write_text(ASK)
    told = tmp_path / "pid"
    code = f"import asker\nasker.measure_apart(asker.work, {str(told)!r})"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    parent = subprocess.Popen([sys.executable, "-c", code], env=environment, cwd=tmp_path)
    try:
        assert _within(60, lambda: told.exists() and told.read_text() != "")
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert _within(20, lambda: not _runs(int(told.read_text())))


def _within(seconds: float, happened) -> bool:
    end = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def _runs(pid: int) -> bool:
    """Whether a process is there and not a zombie that nobody has collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
