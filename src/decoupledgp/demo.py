"""The demonstration: the defaults and the paper's algorithm on kin40k, and the paper's sinc."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from decoupledgp.data import Split, load_kin40k, make_sinc
from decoupledgp.estimators import DecoupledGPRegressor
from decoupledgp.report.figures import Panel, draw_panels
from decoupledgp.report.metrics import Scores, nmse, score

__all__ = ["Sizes", "compare_on_kin40k", "figure_1", "kin40k_models", "run_demo", "sinc_models"]


class Sizes(NamedTuple):
    """Sizes of the two bases; equal ones mean one basis that both share."""

    mean: int
    cov: int

    @property
    def shared(self) -> bool:
        """Whether mean and covariance have one basis."""
        return self.mean == self.cov

    def __str__(self) -> str:
        if self.shared:
            return f"shared basis, M = {self.mean}"
        return f"decoupled, M_α = {self.mean}, M_β = {self.cov}"


FIGURE_1 = (Sizes(10, 10), Sizes(100, 10), Sizes(100, 100))


def kin40k_models(max_iter: int) -> dict[str, DecoupledGPRegressor]:
    """Return the models to compare: the defaults, and stochastic gradients on one basis and on two."""
    shown: dict[str, Any] = {"random_state": 0, "verbose": 1}
    models = {"defaults: solved, calibrated": DecoupledGPRegressor(**shown)}
    for sizes in (Sizes(128, 128), Sizes(4096, 128)):
        models[f"{sizes}, {max_iter} steps"] = DecoupledGPRegressor(
            *sizes, partially_shared=sizes.shared, max_iter=max_iter, **shown
        )
    return models


def compare_on_kin40k(model: DecoupledGPRegressor) -> tuple[Scores, float]:
    """Fit on fold 0 of kin40k; return the test scores and the seconds that fitting took."""
    split = load_kin40k()
    start = time.perf_counter()
    model.fit(split.X_train, split.y_train)
    seconds = time.perf_counter() - start
    return score(split.y_test, *model.predict(split.X_test, return_std=True)), seconds


def sinc_models(split: Split, random_state: int = 0) -> dict[Sizes, DecoupledGPRegressor]:
    """Fit the three models of figure 1 with the same hyper-parameters, so that only the bases differ.

    The largest model learns kernel and noise; the others take them as fixed. Plain inducing points,
    all rows in each step.
    """
    models: dict[Sizes, DecoupledGPRegressor] = {}
    fixed: dict[str, Any] = {}
    for sizes in reversed(FIGURE_1):
        model = DecoupledGPRegressor(
            *sizes,
            partially_shared=sizes.shared,
            basis="points",
            basis_increment=100,
            learning_rate=0.03,
            max_iter=800,
            random_state=random_state,
            **fixed,
        )
        models[sizes] = model.fit(split.X_train, split.y_train)
        fixed = fixed or {
            "kernel": model.kernel_.requires_grad_(False),
            "likelihood": model.likelihood_.requires_grad_(False),
        }
    return {sizes: models[sizes] for sizes in FIGURE_1}


def figure_1(path: Path) -> dict[Sizes, float]:
    """Draw the paper's figure 1 and return each model's nMSE against the true function."""
    split = make_sinc()
    panels, errors = [], {}
    for sizes, model in sinc_models(split).items():
        mean, std = model.predict(split.X_test, return_std=True)
        errors[sizes] = nmse(split.y_test, mean)
        panels.append(Panel(f"{sizes}\nnMSE {errors[sizes]:.4f}", mean, std))
    draw_panels(split, panels, path)
    return errors


def run_demo(out: Path, *, max_iter: int = 500) -> None:
    """Train on bundled data, print the comparison, and write figure 1 into the folder `out`."""
    console = Console()
    table = Table(title="kin40k, fold 0: 36,000 rows, 4,000 test rows")
    for name in ("model", "nMSE", "NLL", "95% coverage", "seconds"):
        table.add_column(name, justify="left" if name == "model" else "right")
    for name, model in kin40k_models(max_iter).items():
        console.print(f"[bold]{name}[/bold]")
        scores, seconds = compare_on_kin40k(model)
        table.add_row(
            name,
            f"{scores.nmse:.4f}",
            f"{scores.nll:.3f}",
            f"{scores.coverage:.1%}",
            f"{seconds:.0f}",
        )
    console.print(table)
    path = out / "figure1.png"
    console.print("[bold]sinc, 500 points[/bold] (the paper's figure 1)")
    for sizes, error in figure_1(path).items():
        console.print(f"  {sizes}: nMSE {error:.4f}")
    console.print(f"wrote {path}")
