"""Ctrl-C between steps, not within one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["finish_first"]


@contextmanager
def finish_first() -> Iterator[None]:
    """Hold a Ctrl-C back until the block is done, so that it leaves no half-made step behind."""
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        yield
        return
    held: list[tuple[object, ...]] = []
    signal.signal(signal.SIGINT, lambda *received: held.append(received))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if held:
        usual(*held[-1])  # type: ignore[arg-type]
