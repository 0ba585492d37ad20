"""Importing the package brings in nothing that a first fit may not need."""

import subprocess
import sys


def test_slow_libraries_are_imported_when_first_used():
    code = (
        "import sys, torch, gpytorch, sklearn.base; before = set(sys.modules); import decoupledgp;"
        "print([m for m in sys.argv[1:] if m in set(sys.modules) - before])"
    )
    slow = ["numba", "pyarrow", "matplotlib", "rich", "typer", "pandas", "polars"]
    command = [sys.executable, "-c", code, *slow]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
