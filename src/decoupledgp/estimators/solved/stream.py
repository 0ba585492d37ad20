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

__all__ = ["SWEEPS_EXPECTED", "SolvedStream", "Touched"]

GROWTH = 1.25
"""A stream's mean is solved for as a whole again when the rows have grown by this factor since."""

TOGETHER, NEIGHBOURS = 128, 256
"""New rows that are solved for at once, and how many neighbours each brings at most."""

FADED = 0.05
"""A cell whose rows have faded to less than so many is given away."""

ALIKE = 0.97
"""Rows may share a cell if f at a row has this correlation with f at the centre, and cells may become one."""

FAR, UNLIKE = 0.9, 0.3
"""A row should have a cell of its own if the correlation is less than the first; and it tells nothing about
a cell if it is less than the second."""

ASKED, MOST_MERGED = 4096, 1024
"""Cells among which those are looked for, and how many may be merged at a time."""

SWEEPS_EXPECTED = 10
"""Products with K_α that a whole solution takes, about."""

COPIED = ("x_scaler", "y_scaler", "cells", "history", "rng")
"""What is written to in place while a stream goes on."""


Index = Int[np.ndarray, " k"]


class _Moved(NamedTuple):
    """What residuals at some places say of f at others, whose correlation with f there is `alike`.

    f(x) - m(x) = ρ (f(c) - m(c)) + e with var e = (1 - ρ²) var f(x): so r/ρ is seen at c, with the noise
    of the row and e, over ρ². Everything is standardised.
    """

    at_own_place: Float[np.ndarray, "n p"]
    latent: Float[np.ndarray, "n p"]
    alike: Float[np.ndarray, " n"]
    learnt: Float[np.ndarray, " p"]

    @property
    def residuals(self) -> Float[np.ndarray, "n p"]:
        """The residuals at the other places."""
        return self.at_own_place / self.alike[:, None]

    def known(
        self, known: Float[np.ndarray, "n p"], weights: Float[np.ndarray, " n"]
    ) -> Float[np.ndarray, "n p"]:
        """Return the known part of their noise, (σ² + known) / weight in all, from that of the rows."""
        squared = self.alike[:, None] ** 2
        moved = np.maximum(1 - squared, 0) * self.latent * weights[:, None]
        return np.maximum((self.learnt + known + moved) / squared - self.learnt, 0)


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
        with finish_first():
            try:
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
        if not self.grouped:  # rows of a group that has begun are easier than those of a new one
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
        modules, base = copy.deepcopy(self.modules().state_dict()), self.kernel.base_kernel
        return {**self.__dict__, **copied, "modules": modules, "base": base}

    def _go_back(self, before: dict[str, Any]) -> None:
        modules, base = before.pop("modules"), before.pop("base")
        self.__dict__.update(before)
        self.kernel.base_kernel = base  # another smoothness may have been chosen
        self.modules().load_state_dict(modules)
        self.changed()

    @torch.no_grad()
    def add(self, table: Table, *, merges: bool = True, most: int | None = None) -> Touched:
        """Make cells of rows while there is room (`most` in all), and let the others join the nearest.

        Where a row is far from all cells and the basis is full, two cells that are alike become one
        and the row gets the place, if it `merges`; the mean then has to be solved for around them.
        Cells that have faded make room first.
        """
        a = self.a
        if self.sizes.half_life and len(self.cells) + len(table) > self.most_mean:
            alive = np.flatnonzero(self.cells.rows > FADED)
            self.cells.keep(alive)
            a = a[torch.from_numpy(alive)]
        old = len(self.cells)
        alone = np.arange(len(table)) < min(self.most_mean, most or self.most_mean) - old
        into = np.arange(0)
        if merges and old and not alone.all():
            far = np.flatnonzero(~alone)
            far = far[self._nearest_cells(table.take(far))[1] < FAR]
            merger = self._mergeable(min(len(far), MOST_MERGED))
            alone[self.rng.permutation(far)[: len(merger.gone)]] = True
            a, into = self._merge(merger, a)
        kept, first = len(self.cells), table.take(alone)
        self.cells.append(first.X, first.Y, first.weights, first.known)
        a = torch.cat([a, a.new_zeros(len(first), self.n_outputs)])
        joined = self._join(table.take(~alone))
        return Touched(a, np.unique(np.r_[into, joined, np.arange(kept, len(self.cells))]))

    def _nearest_cells(self, table: Table) -> tuple[Index, Float[np.ndarray, " n"]]:
        """Return the nearest cell of every row, and the correlation of f there with f at its centre."""
        x, centres = self.rows(table).x, self.centres()
        places = coordinates(self.kernel, centres).numpy()
        index = nearest(coordinates(self.kernel, x).numpy(), places)
        return index, likeness(self.kernel.base_kernel, x, centres[index]).numpy()

    def _join(self, table: Table) -> Index:
        """Let rows join the nearest cells; return which those are. Rows that concern none are dropped."""
        if not len(table):
            return np.arange(0)
        index, alike = self._nearest_cells(table)
        near = alike > UNLIKE
        index, alike, table = index[near], alike[near], table.take(near)
        rows = self.rows(table)
        used, back = np.unique(index, return_inverse=True)
        residuals = (rows.y - self.mean(rows.x)).numpy()
        says = _Moved(residuals, self._latent(rows.x), alike, self.noise().numpy())
        centres = self.mean(self.centres()[used]).numpy()[back]
        targets = self.y_scaler.inverse(centres + says.residuals)
        scale = self.y_scaler.scale**2
        known = says.known(rows.known.numpy(), table.weights) * scale
        self.cells.join(index, targets, table.weights, known, self._learnt_noise())
        self.joined_rows += len(index)
        return used

    def _mergeable(self, count: int) -> Merger:
        """Return up to so many cells, and for each another one that is like it."""
        some = np.arange(0)
        if count:
            some = self.rng.permutation(len(self.cells))[: min(ASKED, len(self.cells) // 2)]
        if not len(some):
            return Merger(some, some, np.zeros(0))
        rest = np.setdiff1d(np.arange(len(self.cells)), some)
        centres = self.centres()
        places = coordinates(self.kernel, centres).numpy()
        into = rest[nearest(places[some], places[rest])]
        alike = likeness(self.kernel.base_kernel, centres[some], centres[into]).numpy()
        best = np.argsort(-alike)[:count]
        best = best[alike[best] > ALIKE]
        return Merger(some[best], into[best], alike[best])

    def _merge(self, merger: Merger, a: Float[Tensor, "m p"]) -> tuple[Float[Tensor, "k p"], Index]:
        """Let cells join others; return the coefficients of those left, and which of these were joined."""
        gone, into, alike = merger
        if not len(gone):
            return a, gone
        cells, centres, scale = self.cells, self.centres(), self.y_scaler.scale
        weights, rows = cells.counts[gone], cells.rows.copy()
        at_gone, at_into = (self.mean(centres[part]).numpy() for part in (gone, into))
        residuals = self.y_scaler.transform(cells.targets[gone], np.inf) - at_gone
        says = _Moved(residuals, self._latent(centres[gone]), alike, self.noise().numpy())
        known = says.known(cells.known[gone] / scale / scale, weights) * scale**2
        targets = self.y_scaler.inverse(at_into + says.residuals)
        np.add.at(rows, into, rows[gone])
        cells.join(into, targets, weights, known, self._learnt_noise())
        cells.rows = rows
        self.joined_rows += len(gone)
        kept = np.setdiff1d(np.arange(len(cells)), gone)
        cells.keep(kept)
        a = a.index_add(0, torch.from_numpy(into), a[gone])
        return a[kept], np.searchsorted(kept, np.unique(into))

    def _latent(self, x: Float[Tensor, "n d"]) -> Float[np.ndarray, "n p"]:
        """Return the variance of f, calibrated."""
        factor = 1.0 if self.calibration is None else self.calibration.latent
        return factor * self.variance(x).numpy()

    def _learnt_noise(self) -> Float[np.ndarray, " p"]:
        """The learnt noise variance in the targets' units."""
        return self.noise().numpy() * self.y_scaler.scale**2

    def centres(self) -> Float[Tensor, "m d"]:
        """The cells' centres, standardised."""
        return self.tensors(self.cells.centres, self.cells.targets)[0]

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
        for group in np.array_split(touched.cells, max(-(-len(touched.cells) // TOGETHER), 1)):
            if not len(group):  # rows that concern no cell
                continue
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
        few = self.forget_few(rows)
        if few:
            self.likelihood = self.own_likelihood()
        learn_hyperparameters(
            self.kernel,
            self.likelihood,
            rows,
            rng=self.rng,
            apart=self.grouped,
            again=not few,
            choose_smoothness=self.sizes.choose_smoothness,
        )

    def forget_few(self, rows: Rows) -> bool:
        """Whether the kernel was learnt from few rows, no place to start from; it is the first one then."""
        few = self.learnt_rows < FEWEST_SCORES
        if few:
            self.install(PointBasis(rows.x), PointBasis(rows.x[:0]), self.own_kernel())
        return few

    def _norm(self) -> Tensor:
        """aᵀKa at the cells' solution, a(y - Λa)."""
        rows, a = self.cell_rows(), self.a
        return (a * (rows.y - self.relative_noise(rows) * a)).sum(0)
