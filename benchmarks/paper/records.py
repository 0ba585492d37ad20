"""The results file of the paper's experiments, found again by what they are of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.store import Store

__all__ = ["Key", "Records"]


class Key(NamedTuple):
    """What a result is of; `size` is the protocol's name."""

    data: str
    output: int
    system: str
    seed: int
    size: str


class Records:
    """All results so far, each with the fields of its key; a new one is on disk at once."""

    def __init__(self, path: Path):
        self._store = Store(path)

    def add(self, record: dict[str, Any]) -> None:
        """Append a result."""
        key = {name: record[name] for name in Key._fields}
        self._store.add(key, {name: record[name] for name in record if name not in key})

    def get(self, key: Key) -> dict[str, Any] | None:
        """Return a result, or None if there is none."""
        result = self._store.get(key._asdict())
        return None if result is None else {**key._asdict(), **result}

    def __contains__(self, key: Key) -> bool:
        return key._asdict() in self._store

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return ({**key, **result} for key, result in self._store)

    def __len__(self) -> int:
        return len(self._store)
