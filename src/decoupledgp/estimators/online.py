"""Estimators that learn online: the same loop for `fit` and `partial_fit`, a run of its own for each."""

from __future__ import annotations

from abc import abstractmethod
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils import check_random_state

from decoupledgp.data import consecutive_batches, shuffled_batches
from decoupledgp.estimators.base import GPRegressor
from decoupledgp.estimators.run import Run
from decoupledgp.report.progress import progress

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["OnlineGPRegressor"]


class OnlineGPRegressor(GPRegressor):
    """Feeds minibatches to a run."""

    verbose: int

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from all rows in shuffled minibatches, for `max_iter` of them, from scratch.

        The rows are not copied. Ctrl-C leaves the model as it was after the last whole step, ready to
        predict; before the first one is done, and after an error in the rows, as it was before `fit`.
        """
        with self._all_or_nothing():
            X, Y = self._check_rows(X, y, reset=True)
            run, shuffle = self._begin(Y.shape[1])
            run.check(Y)
            run.open_table(len(X))
            batches = shuffled_batches(len(X), run.settings.batch_size, shuffle)
            with progress(run.settings.max_iter, bool(self.verbose)) as advance:
                for index in islice(batches, run.settings.max_iter):
                    record = run.learn(X[index], Y[index], index)
                    advance(record)
                    if self._called_back(record):
                        break
            run.close_table()
        return self

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Go on learning from more rows, one step per `batch_size` of them; never starts over.

        Fed the minibatches that `fit` draws in its first pass, it ends at the same model (but for
        `preset="paper"`, whose `fit` has the N of the whole table). N grows
        by every row that comes, so a row shown twice counts twice. No row is kept (except the very
        first ones, until there are 32).
        """
        first = not hasattr(self, "_run")
        with self._all_or_nothing():
            X, Y = self._check_rows(X, y, reset=first)
            run = self._begin(Y.shape[1])[0] if first else self._run
            assert isinstance(run, Run)
            run.check(Y)
            run.close_table()
            for part in consecutive_batches(len(X), run.settings.batch_size):
                if self._called_back(run.learn(X[part], Y[part])):
                    break
        return self

    def _begin(self, n_outputs: int) -> tuple[Run, np.random.Generator]:
        """Start a run from the constructor's arguments; also return the generator of row orders."""
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        learning, shuffling = np.random.default_rng(seed).spawn(2)
        self._run = run = self._new_run(n_outputs, learning)
        return run, shuffling

    @abstractmethod
    def _new_run(self, n_outputs: int, rng: np.random.Generator) -> Run:
        """Return an empty run with the constructor's arguments."""
