"""A solved model that goes on: rows become cells or join them, and the mean is corrected around them."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from decoupledgp.bases import PointBasis
from decoupledgp.data import Standardizer, Warp
from decoupledgp.estimators.interrupt import finish_first
from decoupledgp.estimators.solved.model import FEWEST_SCORES, Clock, Follow, SolvedModel, Table
from decoupledgp.kernels import likeness
from decoupledgp.learners.gradient import nmse
from decoupledgp.solvers import learn_hyperparameters, solve_mean
from decoupledgp.solvers.cells import nearby, nearest
from decoupledgp.solvers.mean import correct_block
from decoupledgp.solvers.neighbourhoods import coordinates
from decoupledgp.solvers.rows import Rows
from decoupledgp.solvers.sweeps import BLOCK

__all__ = ["ALIKE", "SWEEPS_EXPECTED", "SolvedStream", "Touched"]

GROWTH = 1.25
"""A stream's mean is solved for as a whole again when the rows have grown by this factor since."""

TOGETHER, NEIGHBOURS = 128, 256
"""New rows that are solved for at once, and how many neighbours each brings at most."""

FADED = 0.05
"""A cell whose rows have faded to less than so many is given away."""

ALIKE = 0.97
"""Rows may share a cell if f at a row has this correlation with f at the centre, and cells may become one."""

FAR = 0.9
"""A row should have a cell of its own if the correlation is less than this."""

ASKED, MOST_MERGED = 4096, 1024
"""Cells among which those are looked for, and how many may be merged at a time."""

SWEEPS_EXPECTED = 10
"""Products with K_α that a whole solution takes, about."""

COPIED = ("x_scaler", "y_scaler", "cells", "history", "rng")
"""What is written to in place while a stream goes on."""


Index = Int[np.ndarray, " k"]


class Merger(NamedTuple):
    """Cells that are to join others, which, and how much f at the two is alike."""

    gone: Index
    into: Index
    alike: Float[np.ndarray, " k"]


class Touched(NamedTuple):
    """Coefficients of all cells, zero for new ones, and the cells that rows were added to."""

    a: Tensor
    cells: np.ndarray


class SolvedStream(SolvedModel):
    """Learns from further rows at a cost that does not depend on how many came before."""

    def more(self, table: Table, follow: Follow) -> bool:
        """Go on from further rows: predict them, keep what they say, correct the mean around them.

        A block solution per 128 rows, O(2,048 M_α D) each, or where that is less two sweeps over all
        cells; and when the rows have grown by a quarter a whole solution, O(M_α² D) per sweep. None of
        it grows with the rows that came before once the mean's basis is full. An error leaves
        everything as it was.
        """
        clock, before = Clock(None), self._snapshot()
        try:
            with finish_first():
                record = self._learn_more(table, clock)
        except BaseException:
            self._go_back(before)
            raise
        return follow(record)

    def _learn_more(self, table: Table, clock: Clock) -> dict[str, Any]:
        table = self.in_weight_units(table)
        self.x_scaler.update(table.X)
        if self.standardises_targets:
            self.y_scaler.update(table.Y)
        rows = self.rows(table)
        error = self.stream_error(rows)
        self.score(rows)
        if self.sizes.half_life:
            self.cells.fade(0.5 ** (len(table) / self.sizes.half_life))
        self.n_rows += len(table)
        touched = self.add(self.as_gaussian(table, rows))
        since, present = self.n_rows - self.solved_rows, float(self.cells.rows.sum())
        if since > (GROWTH - 1) * min(self.solved_rows, present):
            self._solve_again(touched.a)
        elif len(touched.cells) * BLOCK > SWEEPS_EXPECTED * TOGETHER * len(self.cells):
            self.sweep_once(touched)
        else:
            self._correct(touched)
        self.iteration += 1
        self.seconds += clock.seconds
        rows = self.rows(table)  # in units that may be new
        return self.record(self.bound(rows, self.mean(rows.x), self._norm()), error)

    def stream_error(self, rows: Rows) -> float:
        """Return the error on rows that were not learnt from, relative to their variance."""
        return nmse(self.mean(rows.x), rows.y)

    def as_gaussian(self, table: Table, rows: Rows) -> Table:
        """Return rows with targets and noise as Gaussian noise has them: as they are, here."""
        return table

    def _snapshot(self) -> dict[str, Any]:
        """Return all that learning changes; arrays are replaced, not written to, but for these."""
        copied = {name: copy.deepcopy(getattr(self, name)) for name in COPIED}
        return {**self.__dict__, **copied, "modules": copy.deepcopy(self.modules().state_dict())}

    def _go_back(self, before: dict[str, Any]) -> None:
        modules = before.pop("modules")
        self.__dict__.update(before)
        self.modules().load_state_dict(modules)
        self.changed()

    @torch.no_grad()
    def add(self, table: Table, *, merges: bool = True) -> Touched:
        """Make cells of rows while there is room, and let the others join the nearest.

        Where a row is far from all cells and the basis is full, two cells that are alike become one
        and the row gets the place, if it `merges`; the mean then has to be solved for around them.
        """
        alone = np.arange(len(table)) < self.most_mean - len(self.cells)
        kept, touched = np.arange(len(self.cells)), np.arange(0)
        if not alone.all():
            index, alike = self._nearest_cells(table)
            far = self.rng.permutation(np.flatnonzero(~alone & (alike < FAR)))
            merger = self._alike(min(len(far), MOST_MERGED) if merges else 0)
            alone[far[: len(merger.gone)]] = True
            self._join(table.take(~alone), index[~alone], alike[~alone])
            kept, into = self._merge(merger)
            touched = np.union1d(index[~alone], into)
            touched = np.searchsorted(kept, touched[np.isin(touched, kept)])
        a, first, old = self.a[kept], table.take(alone), len(self.cells)
        self.cells.append(first.X, first.Y, first.weights, first.known)
        a = torch.cat([a, a.new_zeros(len(first), self.n_outputs)])
        return Touched(a, np.concatenate([touched, np.arange(old, len(self.cells))]))

    def _nearest_cells(self, table: Table) -> tuple[Index, Float[np.ndarray, " n"]]:
        """Return the nearest cell of every row, and the correlation of f there with f at its centre."""
        x, centres = self.rows(table).x, self.centres()
        places = coordinates(self.kernel, centres).numpy()
        index = nearest(coordinates(self.kernel, x).numpy(), places)
        return index, likeness(self.kernel.base_kernel, x, centres[index]).numpy()

    def _join(self, table: Table, index: Index, alike: Float[np.ndarray, " n"]) -> None:
        """Let rows join cells that are so much alike.

        What a row says of f at the centre is less certain than what it says of f at its own place, by
        the variance of f at the row given f at the centre.
        """
        if not len(table):
            return
        rows = self.rows(table)
        targets = rows.y - self.mean(rows.x) + self.mean(self.centres())[index]
        known = table.known + self._transport(rows.x, alike) * table.weights[:, None]
        values = self.y_scaler.inverse(targets.numpy())
        self.cells.join(index, values, table.weights, known, self._learnt_noise())
        self.joined_rows += len(index)

    def _alike(self, count: int) -> Merger:
        """Return up to so many cells, and for each another one that is like it."""
        some = self.rng.permutation(len(self.cells))[: min(ASKED, len(self.cells) // 2)]
        rest = np.setdiff1d(np.arange(len(self.cells)), some)
        if not count or not len(some):
            return Merger(some[:0], some[:0], np.zeros(0))
        centres = self.centres()
        places = coordinates(self.kernel, centres).numpy()
        into = rest[nearest(places[some], places[rest])]
        alike = likeness(self.kernel.base_kernel, centres[some], centres[into]).numpy()
        best = np.argsort(-alike)[:count]
        best = best[alike[best] > ALIKE]
        return Merger(some[best], into[best], alike[best])

    def _merge(self, merger: Merger) -> tuple[Index, Index]:
        """Let cells join others; return which cells are left, and which of all were joined."""
        gone, into, alike = merger
        cells, centres = self.cells, self.centres()
        if len(gone):
            values = self.y_scaler.inverse(self.mean(centres).numpy())
            targets = cells.targets[gone] - values[gone] + values[into]
            weights, rows = cells.counts[gone], cells.rows.copy()
            known = cells.known[gone] + self._transport(centres[gone], alike) * weights[:, None]
            np.add.at(rows, into, rows[gone])
            cells.join(into, targets, weights, known, self._learnt_noise())
            cells.rows = rows
        kept = np.setdiff1d(np.arange(len(cells)), gone)
        cells.keep(kept)
        return kept, into

    def _transport(self, x: Tensor, alike: np.ndarray) -> Float[np.ndarray, "n p"]:
        """Return the variance of f at places given f at others so much like them, in the targets' units."""
        latent = 1.0 if self.calibration is None else self.calibration.latent
        variance = latent * self.variance(x).numpy() * (1 - alike[:, None] ** 2).clip(0)
        return variance * self.y_scaler.scale**2

    def _learnt_noise(self) -> Float[np.ndarray, " p"]:
        """The learnt noise variance in the targets' units."""
        return self.noise().numpy() * self.y_scaler.scale**2

    def centres(self) -> Float[Tensor, "m d"]:
        """The cells' centres as the mean's functions have them."""
        return self.posterior.mean_basis.locations.detach()

    def sweep_once(self, touched: Touched, values: Tensor | None = None, plan: str = "Lg") -> None:
        """Let sweeps over all cells take up what was added; `values` are the mean's there, if known."""
        problem = self.problem()
        sweeps = problem.sweeps(self.rng)
        sweeps.start_from(touched.a, values)
        sweeps.run("g" if sweeps.is_one_block else plan)
        self.replace_mean(problem, sweeps.a)

    def _correct(self, touched: Touched) -> None:
        """Solve around new rows: each group of them together with its nearest cells."""
        problem, a = self.problem(), touched.a.clone()
        places = problem.coordinates
        for group in np.array_split(touched.cells, -(-len(touched.cells) // TOGETHER)):
            own = places[torch.from_numpy(group)]
            near = nearby(own, places, min(BLOCK // len(group), NEIGHBOURS))
            correct_block(problem, a, torch.from_numpy(np.union1d(group, near)))
        self.replace_mean(problem, a)

    def _solve_again(self, start: Tensor | None) -> None:
        """Solve for all cells from where they are; learn kernel and noise again when rows have doubled."""
        if not self.joined_rows and self.n_rows >= 2 * self.learnt_rows:
            self.learn_again()
            self.learnt_rows, start = self.n_rows, None
        order = self.rng.permutation(np.flatnonzero(self.cells.rows > FADED))
        self.cells.keep(order)
        problem = self.problem()
        self.rebuild(problem)
        start = None if start is None else start[torch.from_numpy(order)]
        self.set_mean(solve_mean(problem, rng=self.rng, start=start).a)
        self.solved_rows = self.n_rows

    def learn_again(self) -> None:
        """Fix all scales by the rows so far, and learn kernel and noise from them."""
        former = self.y_scaler.scale
        warped = self.x_scaler.warp is not None
        self.x_scaler = Standardizer(self.cells.centres)
        if warped:
            standard = self.x_scaler.transform(self.cells.centres)
            self.x_scaler.warp = Warp.fit(standard, self.rng)
        self.y_scaler = Standardizer(self.cells.targets)
        self.held_out = self.held_out.in_units(former / self.y_scaler.scale)
        self.calibrate()
        rows = self.cell_rows()
        few = self.learnt_rows < FEWEST_SCORES
        if few:  # what so few rows said is no place to start from
            kernel, self.likelihood = self.own_kernel(), self.own_likelihood()
            self.install(PointBasis(rows.x), PointBasis(rows.x[:0]), kernel)
        learn_hyperparameters(self.kernel, self.likelihood, rows, rng=self.rng, again=not few)

    def _norm(self) -> Tensor:
        """aᵀKa at the cells' solution, a(y - Λa)."""
        rows, a = self.cell_rows(), self.a
        return (a * (rows.y - self.relative_noise(rows) * a)).sum(0)
