"""The command line."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

import typer

app = typer.Typer(
    help="Gaussian processes for large and streaming data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def main() -> None:
    """Gaussian processes for large and streaming data."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("out"),
    max_iter: Annotated[
        int, typer.Option(min=1, help="Minibatches for the models learnt by gradients.")
    ] = 500,
) -> None:
    """Train on bundled data, print the comparison, draw the paper's figure 1."""
    from decoupledgp.demo import run_demo

    try:
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=out):  # better now than after minutes of learning
            pass
    except OSError as error:
        typer.echo(f"error: cannot write to {out}: {error.strerror or error}", err=True)
        raise typer.Exit(2) from None
    try:
        run_demo(out, max_iter=max_iter)
    except OSError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
