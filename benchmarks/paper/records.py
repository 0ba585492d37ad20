"""The results file: one JSON object per line, found again by what it is of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Key", "Records"]


class Key(NamedTuple):
    """What a result is of; `size` is the protocol's name."""

    data: str
    output: int
    system: str
    seed: int
    size: str


class Records:
    """All results so far; a new one is on disk before the next begins."""

    def __init__(self, path: Path):
        self.path = path
        self._records: dict[Key, dict[str, Any]] = {}
        if path.exists():
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if line.strip():
                    self._remember(self._parsed(line, number))

    def _parsed(self, line: str, number: int) -> dict[str, Any]:
        try:
            return json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{self.path}, line {number} is no JSON ({error}); delete the line to run it again"
            ) from error

    def _remember(self, record: dict[str, Any]) -> None:
        self._records[Key(*(record[field] for field in Key._fields))] = record

    def add(self, record: dict[str, Any]) -> None:
        """Append a result."""
        self._remember(record)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")

    def get(self, key: Key) -> dict[str, Any] | None:
        """Return a result, or None if there is none."""
        return self._records.get(key)

    def __contains__(self, key: Key) -> bool:
        return key in self._records

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._records.values())

    def __len__(self) -> int:
        return len(self._records)
