"""(K + Λ) a = y for functions at the rows themselves, by sweeps of exact block solutions.

One sweep takes the rows in blocks and solves each exactly, by Cholesky, against what the others have
left. Blocks of neighbours settle what is local, blocks of random rows what is smooth; taken in turn,
and combined by conjugate gradient (every sweep is a direction, made conjugate to those before it), a
few of them reach an error that would take either kind alone many times as long. Conjugate gradient
minimises the energy, in which smooth errors count little; so the last sweep is a plain one of random
blocks, which removes those.

With a row for every function the coefficients are a = Λ⁻¹(y - Ka), residuals over noise: they stay
moderate, where those of a least-squares fit on fewer functions are large and cancel. K is never
held: a sweep computes every entry once, O(n² D), and keeps O(n) numbers and one block.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from decoupledgp.bases import Functions
from decoupledgp.ops import safe_cholesky
from decoupledgp.ops.threads import run_all

__all__ = ["BLOCK", "Sweeps", "block_solution", "product_by_rows"]

BLOCK = 2048
"""Rows that are solved for at once."""

ROWS_AT_ONCE = 2048
"""Rows of a kernel product that one thread computes at once."""

DIRECTIONS = 6
"""Former sweeps that a new one is made conjugate to."""

CHECKED = 128
"""Rows at which values in float32 are compared with exact ones after every sweep."""

TOLERATED = 0.05
"""Error of the values that is let pass, as a share of what they leave of the targets."""

SINGLE_ERROR = 5e-6
"""Error of a kernel entry in float32, with a margin. A random matrix of such errors has a norm of √n
times that, which must stay below the smallest Λ for the perturbed system to be as good."""


class Sweeps:
    """The system for P outputs with noise of their own, and where its solution stands.

    `x` are further rows at which the solution is followed: `values` holds K a at the functions'
    rows first, then at those. `coordinates` say which rows are neighbours.
    """

    def __init__(
        self,
        functions: Functions,
        rows: Float[Tensor, "n d"],
        noise: Float[Tensor, "n p"],
        y: Float[Tensor, "n p"],
        *,
        coordinates: Float[Tensor, "n d"],
        rng: np.random.Generator,
        x: Float[Tensor, "k d"] | None = None,
        block: int | None = None,
    ):
        self.functions, self.noise, self.y, self.rng = functions.double(), noise, y, rng
        self.rows = rows if x is None else torch.cat([rows, x])
        self.coordinates = coordinates.detach().cpu().numpy()
        # Every output has factors of its own: with many, smaller blocks balance them and the products.
        self.block = block or (BLOCK if y.shape[1] <= 2 else BLOCK // 2)
        self.a = torch.zeros_like(y)
        self.values = y.new_zeros(len(self.rows), y.shape[1])
        least = float(noise.min())
        safe = SINGLE_ERROR * len(y) ** 0.5 < least
        # An error at a function's own row acts on its coefficient, which is the residual by the noise.
        safe = safe and self.functions.meeting_error <= TOLERATED * least
        self.product = self.functions.single() if safe else self.functions
        self._directions: list[tuple[Tensor, Tensor]] = []

    @property
    def is_one_block(self) -> bool:
        """Whether one plain sweep is the exact solution."""
        return len(self.y) <= self.block

    @property
    def residual(self) -> Float[Tensor, "n p"]:
        """y - (K + Λ)a."""
        return self.y - self.values[: len(self.y)] - self.noise * self.a

    def energy(self) -> Float[Tensor, " p"]:
        """½aᵀ(K + Λ)a - aᵀy, which the solution minimises."""
        return (self.a * (0.5 * (self.values[: len(self.y)] + self.noise * self.a) - self.y)).sum(0)

    def start_from(
        self, a: Float[Tensor, "n p"], values: Float[Tensor, "m p"] | None = None
    ) -> None:
        """Go on from coefficients that are known, and perhaps their values too."""
        self.a = a.clone()
        self.values = product_by_rows(self.functions, self.rows, a) if values is None else values
        self._directions.clear()

    @torch.no_grad()
    def sweep(self, *, local: bool, accelerate: bool) -> None:
        """Solve all blocks once; accelerate by conjugate gradient, or take the result as it is."""
        before, kept = self.energy(), self.a
        z, values = self._block_solutions(local)
        if accelerate:
            z, values = self._conjugate(z, values)
            self._directions = [*self._directions, (z, values)][-DIRECTIONS:]
            length = (self.residual * z).sum(0) / self._inner((z, values), z)
            z, values = length * z, length * values
        self.a, self.values = self.a + z, self.values + values
        after = self.energy()
        sound = bool(((after <= before + 1e-6 * before.abs()) & after.isfinite()).all())
        if self.product is not self.functions and not (sound and self._values_are_right()):
            # Rounding has the better of it: double precision from here on.
            self.product = self.functions
            self.start_from(self.a if sound else kept)
        elif not sound:
            self.start_from(kept)

    def run(self, plan: str) -> None:
        """Sweep by a plan of letters: L local, G global, small ones without acceleration."""
        for letter in plan:
            self.sweep(local=letter in "Ll", accelerate=letter.isupper())

    def _values_are_right(self) -> bool:
        """Compare some values with products in double precision, on the scale of what is not fitted."""
        index = torch.from_numpy(self.rng.integers(len(self.y), size=CHECKED))
        exact = product_by_rows(self.functions, self.rows[index], self.a)
        error = (exact - self.values[index]).square().mean(0)
        left = (self.y - self.values[: len(self.y)]).square().mean(0)
        return bool((error <= TOLERATED**2 * left).all())

    def _block_solutions(self, local: bool) -> tuple[Tensor, Tensor]:
        """Return one Gauss-Seidel sweep's change of a and of the values."""
        n, residual = len(self.y), self.residual
        z, values = torch.zeros_like(self.a), torch.zeros_like(self.values)
        for index in self._neighbours() if local else self._random():
            left = residual[index] - values[:n][index] - self.noise[index] * z[index]
            z[index] = block_solution(self.functions.take(index), self.noise[index], left)
            values += product_by_rows(self.product.take(index), self.rows, z[index])
        return z, values

    def _conjugate(self, z: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        for direction in self._directions:
            share = self._inner(direction, z) / self._inner(direction, direction[0])
            z, values = z - share * direction[0], values - share * direction[1]
        return z, values

    def _inner(self, direction: tuple[Tensor, Tensor], z: Tensor) -> Float[Tensor, " p"]:
        """qᵀ(K + Λ)z for a direction q whose values are known."""
        q, values = direction
        tiny = torch.finfo(q.dtype).tiny
        return ((values[: len(q)] + self.noise * q) * z).sum(0) + tiny

    def _random(self) -> list[Tensor]:
        count = -(-len(self.y) // self.block)
        return self._tensors(np.array_split(self.rng.permutation(len(self.y)), count))

    def _neighbours(self) -> list[Tensor]:
        """Halve the rows along their widest coordinate until the parts are blocks, elsewhere each time."""
        done, todo = [], [np.arange(len(self.y))]
        while todo:
            part = todo.pop()
            if len(part) <= self.block:
                done.append(part)
                continue
            places = self.coordinates[part]
            widest = places[:, np.argmax(places.var(0))]
            cut = int(len(part) * self.rng.uniform(0.4, 0.6))
            order = np.argpartition(widest, cut)
            todo += [part[order[:cut]], part[order[cut:]]]
        return self._tensors([done[k] for k in self.rng.permutation(len(done))])

    def _tensors(self, parts: list[np.ndarray]) -> list[Tensor]:
        return [torch.from_numpy(part).to(self.y.device) for part in parts]


def block_solution(
    functions: Functions, noise: Float[Tensor, "b p"], y: Float[Tensor, "b p"]
) -> Float[Tensor, "b p"]:
    """Return (K + Λ_p)⁻¹y_p for a few functions at their own rows."""
    K = functions.gram()
    diagonal, factor = K.diagonal().clone(), K
    out = torch.empty_like(y)
    for p in range(y.shape[1]):
        if p == 0 or not torch.equal(noise[:, p], noise[:, p - 1]):
            K.diagonal().copy_(diagonal + noise[:, p])
            factor, failed = torch.linalg.cholesky_ex(K)
            if failed:
                factor = safe_cholesky(K)
        out[:, p] = torch.cholesky_solve(y[:, [p]], factor)[:, 0]
    return out


@torch.no_grad()
def product_by_rows(
    functions: Functions, x: Float[Tensor, "n d"], a: Float[Tensor, "m p"]
) -> Float[Tensor, "n p"]:
    """Return K_xα a in float64, rows in parallel; computed in the type of the functions."""
    out = a.new_empty(len(x), a.shape[1], dtype=torch.float64)

    def fill(start: int) -> None:
        part = slice(start, start + ROWS_AT_ONCE)
        out[part] = functions.matmul(x[part], a)

    jobs = [partial(fill, start) for start in range(0, len(x), ROWS_AT_ONCE)]
    run_all(jobs, x.device, in_turn=not functions.parallel)
    return out
