"""The two gradient boosting libraries behind one face: scikit-learn's histograms and XGBoost's.

Both grow trees leaf by leaf, stop when the loss on rows kept back has not fallen for `PATIENCE` trees,
and can be stopped by the clock.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple, Protocol

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

__all__ = ["HISTGRAD", "XGBOOST", "Fitted", "Library", "Trial"]

PATIENCE = 30
"""Trees without gain before a model stops."""
FIRST_TREES = 10
MOST_TREES = 20_000


class Trial(NamedTuple):
    """Sizes of trees and steps."""

    leaves: int
    rate: float


class Fitted(NamedTuple):
    """A model and how it was learnt."""

    model: Any
    loss: float
    """On the rows kept back."""
    trees: int
    seconds: float
    finished: bool
    """Whether it stopped by itself, and not by the clock."""


class Library(Protocol):
    """What the two libraries have in common."""

    def fit(
        self,
        split: tuple[np.ndarray, ...],
        trial: Trial,
        seed: int,
        deadline: float,
        quantile: float | None,
    ) -> Fitted:
        """Learn from (X, y, X_kept, y_kept), stopping early or at the deadline."""

    def refit(self, X: np.ndarray, y: np.ndarray, trial: Trial, seed: int, trees: int) -> Any:
        """Learn from all rows, a known number of trees."""

    def predict(self, model: Any, X: np.ndarray) -> np.ndarray:
        """Return predictions, of shape (n,)."""


class HistGrad:
    """scikit-learn's HistGradientBoostingRegressor, grown until the clock or its own stop."""

    def fit(
        self,
        split: tuple[np.ndarray, ...],
        trial: Trial,
        seed: int,
        deadline: float,
        quantile: float | None = None,
    ) -> Fitted:
        """Grow in instalments that fit the time left."""
        X, y, X_kept, y_kept = split
        start = time.perf_counter()
        model = self._model(trial, seed, FIRST_TREES, quantile)
        model.set_params(early_stopping=True, n_iter_no_change=PATIENCE, warm_start=True)
        while True:
            before = time.perf_counter()
            grown = getattr(model, "n_iter_", 0)
            model.fit(X, y, X_val=X_kept, y_val=y_kept)
            now = time.perf_counter()
            # Instalments double: each one begins with the bins and a pass over the trees there are.
            each = (now - before) / max(model.n_iter_ - grown, 1)
            room = int(max(deadline - now, 0) / each)
            more = min(model.n_iter_, room, MOST_TREES - model.n_iter_)
            if model.n_iter_ < model.max_iter or more < 1:
                break
            model.set_params(max_iter=model.n_iter_ + more)
        loss = _loss(y_kept, model.predict(X_kept), quantile)
        finished = model.n_iter_ < model.max_iter or model.n_iter_ == MOST_TREES
        return Fitted(model, loss, model.n_iter_, time.perf_counter() - start, finished)

    def refit(self, X: np.ndarray, y: np.ndarray, trial: Trial, seed: int, trees: int) -> Any:
        """Learn from all rows, a known number of trees."""
        return self._model(trial, seed, trees, None).fit(X, y)

    def predict(self, model: Any, X: np.ndarray) -> np.ndarray:
        """Return predictions, of shape (n,)."""
        return model.predict(X)

    def _model(
        self, trial: Trial, seed: int, trees: int, quantile: float | None
    ) -> HistGradientBoostingRegressor:
        return HistGradientBoostingRegressor(
            loss="squared_error" if quantile is None else "quantile",
            quantile=quantile,
            learning_rate=trial.rate,
            max_leaf_nodes=trial.leaves,
            max_iter=trees,
            early_stopping=False,
            random_state=seed,
        )


class XGBoost:
    """XGBoost with histograms, grown leaf by leaf as the other."""

    def fit(
        self,
        split: tuple[np.ndarray, ...],
        trial: Trial,
        seed: int,
        deadline: float,
        quantile: float | None = None,
    ) -> Fitted:
        """Grow until the error on the rows kept back stops falling, or the deadline."""
        import xgboost

        class Clock(xgboost.callback.TrainingCallback):
            def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
                return time.perf_counter() > deadline

        X, y, X_kept, y_kept = split
        start = time.perf_counter()
        rows = xgboost.QuantileDMatrix(X, y)
        kept = xgboost.QuantileDMatrix(X_kept, y_kept, ref=rows)
        stop = xgboost.callback.EarlyStopping(rounds=PATIENCE, save_best=True)
        model = xgboost.train(
            self._parameters(trial, seed, quantile),
            rows,
            MOST_TREES,
            evals=[(kept, "kept")],
            callbacks=[stop, Clock()],
            verbose_eval=False,
        )
        loss = _loss(y_kept, model.predict(kept), quantile)
        now = time.perf_counter()
        return Fitted(model, loss, model.num_boosted_rounds(), now - start, now < deadline)

    def refit(self, X: np.ndarray, y: np.ndarray, trial: Trial, seed: int, trees: int) -> Any:
        """Learn from all rows, a known number of trees."""
        import xgboost

        rows = xgboost.QuantileDMatrix(X, y)
        return xgboost.train(self._parameters(trial, seed, None), rows, trees)

    def predict(self, model: Any, X: np.ndarray) -> np.ndarray:
        """Return predictions, of shape (n,)."""
        import xgboost

        return model.predict(xgboost.DMatrix(X))

    def _parameters(self, trial: Trial, seed: int, quantile: float | None) -> dict[str, Any]:
        goal: dict[str, Any] = {"objective": "reg:squarederror"}
        if quantile is not None:
            goal = {"objective": "reg:quantileerror", "quantile_alpha": quantile}
        return {
            **goal,
            "tree_method": "hist",
            "grow_policy": "lossguide",
            "max_depth": 0,
            "max_leaves": trial.leaves,
            "learning_rate": trial.rate,
            "seed": seed,
        }


def _loss(y: np.ndarray, predicted: np.ndarray, quantile: float | None) -> float:
    error = y - predicted
    if quantile is None:
        return float(np.mean(error**2))
    return float(np.mean(np.maximum(quantile * error, (quantile - 1) * error)))


HISTGRAD, XGBOOST = HistGrad(), XGBoost()
