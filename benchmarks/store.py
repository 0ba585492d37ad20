"""A file of results that a stopped run goes on from: one JSON object per line, `key` and `result`.

A result with an `error` counts as done too; to have it tried again, delete its line. So does one that
was measured with an older version of the code: begin with a new file after changing a model.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["Key", "Result", "Store"]

Key = Mapping[str, Any]
Result = dict[str, Any]


class Store:
    """Results by their keys, in memory and at the end of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._results: dict[str, tuple[Key, Result]] = {}
        self._writing = threading.Lock()
        if path.exists():
            for number, line in enumerate(path.read_text().splitlines(keepends=True), 1):
                self._read(line, number)

    def __len__(self) -> int:
        return len(self._results)

    def __contains__(self, key: Key) -> bool:
        return _text(key) in self._results

    def __iter__(self) -> Iterator[tuple[Key, Result]]:
        return iter(self._results.values())

    def get(self, key: Key) -> Result | None:
        """Return a result, or None if it has not been run."""
        found = self._results.get(_text(key))
        return None if found is None else found[1]

    def add(self, key: Key, result: Result) -> None:
        """Keep a result and write it down at once."""
        line = json.dumps({"key": dict(key), "result": result}, default=float)
        with self._writing:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            cut = self.path.exists() and self.path.read_bytes()[-1:] not in (b"", b"\n")
            with self.path.open("a") as file:
                file.write(("\n" if cut else "") + line + "\n")
            self._results[_text(key)] = (key, result)

    def _read(self, line: str, number: int) -> None:
        try:
            record = json.loads(line)
            self._results[_text(record["key"])] = (record["key"], record["result"])
        except (ValueError, KeyError, TypeError) as error:
            # A run that was stopped while writing leaves half a line; that one is run again.
            if line.endswith("\n") and line.strip().endswith("}"):
                raise ValueError(f"{self.path}, line {number} is no result: {error!r}") from error


def _text(key: Key) -> str:
    return json.dumps(dict(key), sort_keys=True)
