"""One model on one split, in the process that calls it: scores, seconds, memory, or what went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import gps, ours, trees
from benchmarks.peers.families import PEERS
from benchmarks.peers.scores import Prediction, score
from benchmarks.processes import measure_apart, peak_megabytes
from benchmarks.tables import Split, load

__all__ = ["apart", "boosting_by_default", "by_clock", "by_default", "first_line", "svgp_steps"]

STEPS, MEASURED, WARM = 150, 30, 3
"""The seconds of 150 steps are extrapolated from 30, after 3 that do not count."""


def by_clock(
    peer: str, name: str, fold: int, folder: Path, clock: float, times: Sequence[float]
) -> list[dict[str, Any]]:
    """Return a result for each multiple of `clock`; after a failure, all that remain say so."""
    split = load(name, fold, folder)
    results: list[dict[str, Any]] = []
    try:
        for prediction in PEERS[peer].predict(split, fold, clock, times):
            results.append({**_result(split, prediction), "clock": clock})
    except Exception as error:
        failure = {"error": first_line(error), "clock": clock, "MB": peak_megabytes()}
        results += [failure] * (len(times) - len(results))
    return results


def by_default(name: str, fold: int, folder: Path) -> dict[str, Any]:
    """Return the scores of `DecoupledGPRegressor()` with nothing else."""
    split = load(name, fold, folder)
    return _result(split, ours.predict_by_default(split, fold))


def boosting_by_default(name: str, fold: int, folder: Path) -> dict[str, Any]:
    """Return the scores of `HistGradientBoostingRegressor()` with nothing else."""
    split = load(name, fold, folder)
    return _result(split, trees.predict_by_default(split, fold))


def svgp_steps(name: str, fold: int, folder: Path) -> dict[str, Any]:
    """Return the seconds of 150 Adam steps of GPyTorch's SVGP with 1,024 inducing points."""
    each = gps.seconds_of_steps(load(name, fold, folder), fold, MEASURED, WARM)
    return {"seconds": STEPS * each, "MB": peak_megabytes()}


def apart(function: Any, *arguments: Any) -> Any:
    """Return what the function returns in a process of its own, or a result that says how it died."""
    try:
        return measure_apart(function, *arguments)
    except FileNotFoundError:
        raise
    except Exception as error:
        return {"error": first_line(error)}


def first_line(error: BaseException) -> str:
    """Return what happened, in one line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _result(split: Split, prediction: Prediction) -> dict[str, Any]:
    scores = score(split.y_test, prediction)
    shape = {"N": len(split.X_train), "D": split.X_train.shape[1], "P": split.y_train.shape[1]}
    extra = prediction.extra
    return {**scores, **shape, **extra, "seconds": prediction.seconds, "MB": peak_megabytes()}
