"""All the peers by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from benchmarks.peers import exact, gps, ours, trees
from benchmarks.peers.boosters import HISTGRAD, XGBOOST
from benchmarks.peers.scores import Prediction
from benchmarks.tables import Split

__all__ = ["OURS", "PEERS", "Peer"]

ByClock = Callable[[Split, int, float, Sequence[float]], Iterator[Prediction]]


class Peer(NamedTuple):
    """A model of the comparison at equal time."""

    title: str
    kind: str
    """"gp" or "trees"."""
    settings: str
    """Results with other settings are other results."""
    predict: ByClock


def _variational(title: str, settings: gps.Settings) -> Peer:
    text = ", ".join(f"{name} {value}" for name, value in settings._asdict().items())
    return Peer(title, "gp", text, partial(gps.predict_by_clock, settings=settings))


_TRIALS = "; ".join(f"{trial.leaves} leaves, rate {trial.rate}" for trial in trees.TRIALS)

OURS = "ours"
PEERS: dict[str, Peer] = {
    OURS: Peer("DecoupledGPRegressor", "gp", "defaults", ours.predict_by_clock),
    "svgp": _variational("GPyTorch SVGP-1024, Adam", gps.SVGP),
    "svgp-natural": _variational("GPyTorch SVGP-1024, natural gradient", gps.NATURAL),
    "orthogonal": _variational(
        f"GPyTorch orthogonal, {gps.ORTHOGONAL.mean_points} + {gps.ORTHOGONAL.inducing}",
        gps.ORTHOGONAL,
    ),
    "exact": Peer("scikit-learn exact GP", "gp", "rows doubled", exact.predict_by_clock),
    "histgrad": Peer(
        "HistGradientBoosting",
        "trees",
        _TRIALS,
        partial(trees.predict_by_clock, library=HISTGRAD),
    ),
    "xgboost": Peer("XGBoost", "trees", _TRIALS, partial(trees.predict_by_clock, library=XGBOOST)),
}
