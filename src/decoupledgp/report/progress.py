"""A progress bar on standard error that shows the latest record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["progress"]


@contextmanager
def progress(total: int | None, show: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield a function to call with each step's record; it draws if `show` is true.

    A total of None is not known beforehand.
    """
    if not show:
        yield lambda record: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total)
        yield lambda record: bar.update(
            task,
            advance=1,
            description=(
                f"elbo {record['elbo']:.4g}  nmse {record['nmse']:.3f}  "
                f"bases {record['n_mean_basis']}+{record['n_cov_basis']}"
            ),
        )
