"""What a number was measured on."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import torch

import decoupledgp


def commit() -> str | None:
    """Return the commit of the code that runs, with a "+" if it was changed since; None if unknown."""
    folder = Path(__file__).parent
    try:
        name, changes = (
            subprocess.run(
                ["git", *words], cwd=folder, capture_output=True, text=True, check=True
            ).stdout.strip()
            for words in (
                ("rev-parse", "--short=12", "HEAD"),
                ("status", "--porcelain", "--untracked-files=no"),
            )
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return name + ("+" if changes else "")


def describe() -> str:
    """Return one line: processor, cores, threads, versions."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    return (
        f"{model}, {os.cpu_count()} cores, {torch.get_num_threads()} threads; "
        f"Python {platform.python_version()}, PyTorch {torch.__version__}, "
        f"decoupledgp {decoupledgp.__version__}"
    )
