"""Sweeps and refinement against dense solutions."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import dense
from decoupledgp.bases import PointBasis
from decoupledgp.kernels import se_ard
from decoupledgp.solvers import mean, sweeps
from decoupledgp.solvers.cells import Cells, nearby, nearest
from decoupledgp.solvers.mean import MeanProblem, _ByRefinement, correct_block, solve_mean
from decoupledgp.solvers.sweeps import Sweeps, product_by_rows

S = np.array([0.8, 1.3])
P = 2


def kernel():
    base = se_ard(2).double()
    base.lengthscale = torch.tensor(S[None])
    return base


def rows(n, seed=0):
    rng = np.random.default_rng(seed)
    x = torch.tensor(rng.uniform(-3, 3, (n, 2)))
    return x, torch.tensor(rng.standard_normal((n, P)))


def system(n=200, k=15, noise=0.05, block=40, seed=0):
    """A system, its dense matrix and right side."""
    x, y = rows(n + k, seed)
    x, new, y = x[:n], x[n:], y[:n]
    noises = noise * (1 + torch.rand(n, P, generator=torch.Generator().manual_seed(0)).double())
    sweeps = Sweeps(
        PointBasis(x).at(kernel()),
        x,
        noises,
        y,
        coordinates=x / torch.tensor(S),
        rng=np.random.default_rng(1),
        x=new,
        block=block,
    )
    K = dense.se_gram(torch.cat([x, new]).numpy(), x.numpy(), S)
    return sweeps, K, noises.numpy(), y.numpy()


def solution(K, noise, y):
    A = K[: len(y)]
    return np.column_stack(
        [np.linalg.solve(A + np.diag(noise[:, p]), y[:, p]) for p in range(y.shape[1])]
    )


def test_one_block_is_the_exact_solution():
    sweeps, K, noise, y = system(block=500)
    sweeps.run("g")
    assert_allclose(sweeps.a, solution(K, noise, y), rtol=1e-6, atol=1e-6)
    assert_allclose(sweeps.values, K @ sweeps.a.numpy(), atol=1e-4)  # products in float32


@pytest.mark.parametrize("plan", ["LGLGLGLGLg", "LLLLLLLLLLg", "GGGGGGGGGGGGGGGGg"])
def test_sweeps_converge_to_the_dense_solution(plan):
    sweeps, K, noise, y = system()
    sweeps.run(plan)
    expected = K @ solution(K, noise, y)
    assert_allclose(sweeps.values, expected, atol=0.01)
    assert float(sweeps.residual.norm()) < 0.02 * np.linalg.norm(y)


def test_plain_sweeps_converge_too_and_every_sweep_lowers_the_energy():
    sweeps, K, noise, y = system()
    energies = []
    for letter in "lglgLGLGlglg":
        sweeps.run(letter)
        energies.append(sweeps.energy())
    assert all((after <= before + 1e-9).all() for before, after in pairwise(energies))
    a = solution(K, noise, y)
    least = [
        0.5 * a[:, p] @ (K[: len(y)] + np.diag(noise[:, p])) @ a[:, p] - a[:, p] @ y[:, p]
        for p in range(P)
    ]
    assert_allclose(energies[-1], least, rtol=1e-3)


def test_local_and_global_sweeps_together_beat_either():
    """At the same number of sweeps: the reason why they alternate."""
    error = {}
    for plan in ("LGLGLg", "GGGGGg", "LLLLLl"):
        sweeps, K, noise, y = system(n=600, noise=0.003, block=60)
        sweeps.run(plan)
        error[plan] = np.linalg.norm(sweeps.values.numpy() - K @ solution(K, noise, y))
    assert error["LGLGLg"] < min(error["GGGGGg"], error["LLLLLl"])


def test_blocks_hold_every_row_once():
    sweeps, *_ = system(n=203)
    for parts in (sweeps._random(), sweeps._neighbours()):
        assert_allclose(torch.cat(parts).sort().values, np.arange(203))
        assert max(len(part) for part in parts) <= 40


def test_neighbours_are_nearer_each_other_than_random_rows():
    sweeps, *_ = system(n=400)

    def spread(parts):
        return np.mean([sweeps.coordinates[part].var(0).sum() for part in parts])

    assert spread(sweeps._neighbours()) < 0.5 * spread(sweeps._random())


def test_little_noise_is_computed_in_double_precision():
    """1e-7 of the signal: float32 products would be a thousand times larger."""
    sweeps, K, *_ = system(noise=1e-7, block=500)
    assert sweeps.product is sweeps.functions
    sweeps.y = torch.tensor(K[:200, :P])  # functions of the RKHS, so that there is a solution
    sweeps.run("gg")
    assert float((sweeps.values[:200] - sweeps.y).abs().max()) < 1e-4
    assert system(noise=0.5)[0].product is not sweeps.functions


def test_a_product_that_does_not_fit_is_noticed_and_replaced():
    sweeps, K, noise, y = system()
    wrong = se_ard(2).double()
    wrong.lengthscale = torch.tensor(0.1 * S[None])
    sweeps.product = PointBasis(sweeps.rows[:200]).at(wrong)
    sweeps.run("L")
    assert sweeps.product is sweeps.functions
    sweeps.run("LGLGLGLGg")
    assert_allclose(sweeps.values, K @ solution(K, noise, y), atol=0.02)


def test_going_on_from_a_solution():
    sweeps, *_ = system()
    sweeps.run("LGg")
    again, *_ = system()
    again.start_from(sweeps.a)
    assert_allclose(again.values, sweeps.values, atol=1e-4)
    before = again.energy()
    again.run("LG")
    assert (again.energy() < before).all()


def problem(n=300, m=40, ratio=(0.02, 0.1)):
    """More rows than functions, gathered into cells; a smooth target with noise."""
    x, y = rows(n)
    y = torch.sin(x[:, :1]) * torch.cos(x[:, 1:]) + 0.1 * y
    places = x / torch.tensor(S)
    cell = nearest(places.numpy(), places[:m].numpy())
    counts = torch.from_numpy(np.bincount(cell, minlength=m).astype(float))
    index = torch.from_numpy(cell)

    def mean(table):
        sums = torch.zeros(m, table.shape[1], dtype=table.dtype)
        return sums.index_add_(0, index, table) / counts[:, None]

    centres = mean(x)
    return MeanProblem(
        functions=PointBasis(centres).at(kernel()),
        centres=centres,
        targets=mean(y),
        noise=torch.tensor(ratio, dtype=torch.float64) / counts[:, None],
        coordinates=centres / torch.tensor(S),
        x=x,
        y=y,
        row_noise=torch.tensor(ratio, dtype=torch.float64).expand(n, -1),
        cell=index,
    )


def shared_functions(task):
    """Solve λa_j = Σ_{n in j} (y_n - f(x_n)) densely; return the values at the rows."""
    cross = dense.se_gram(task.x.numpy(), task.centres.numpy(), S)
    gather = np.eye(len(task.centres))[:, task.cell.numpy()]
    values = []
    for p, ratio in enumerate(task.row_noise[0].numpy()):
        A = gather @ cross + ratio * np.eye(len(gather))
        values.append(cross @ np.linalg.solve(A, gather @ task.y[:, p].numpy()))
    return np.column_stack(values)


def energy(task, a):
    """½‖y - K_Xα a‖²/λ + ½aᵀK_αa, over outputs."""
    z, ratio = task.centres.numpy(), task.row_noise.numpy()
    K, cross = dense.se_gram(z, z, S), dense.se_gram(task.x.numpy(), z, S)
    fit = (np.square(task.y.numpy() - cross @ a) / ratio).sum(0)
    return 0.5 * np.sum(fit + np.einsum("mp,mn,np->p", a, K, a))


def least_squares(task):
    """The coefficients of the least energy, densely."""
    z, y = task.centres.numpy(), task.y.numpy()
    K, cross = dense.se_gram(z, z, S), dense.se_gram(task.x.numpy(), z, S)
    return np.column_stack(
        [
            np.linalg.lstsq(cross.T / r @ cross + K, cross.T / r @ y[:, p], rcond=1e-12)[0]
            for p, r in enumerate(task.row_noise.numpy().T)
        ]
    )


def test_refinement_approaches_rows_that_share_functions():
    """And lowers the energy at every step, towards the least that these functions allow."""
    task = problem()
    expected, errors, energies = shared_functions(task), [], []
    least = energy(task, least_squares(task))
    solver = _ByRefinement(task, np.random.default_rng(0), task.x[:50], None)
    for _ in range(40):
        solver.step()
        found = solver.solution()
        errors.append(np.linalg.norm(found.at_rows.numpy() - expected))
        energies.append(energy(task, found.a.numpy()))
    assert errors[-1] < 0.5 * errors[0]
    assert all(after <= before + 1e-3 for before, after in pairwise(energies))
    assert energies[-1] - least < 0.5 * (energies[0] - least)
    assert_allclose(found.watched, found.at_rows[:50], atol=1e-8)
    K = dense.se_gram(task.centres.numpy(), task.centres.numpy(), S)
    assert_allclose(found.at_centres, K @ found.a.numpy(), atol=2e-3)  # products in float32
    assert_allclose(found.norm, np.einsum("mp,mn,np->p", found.a, K, found.a), rtol=0.01)


def test_a_full_row_each_is_kernel_ridge_regression():
    x, y = rows(80)
    noise = np.random.default_rng(3).uniform(0.05, 0.4, (80, P))
    task = MeanProblem(
        functions=PointBasis(x).at(kernel()),
        centres=x,
        targets=y,
        noise=torch.from_numpy(noise),
        coordinates=x,
    )
    found = solve_mean(task, rng=np.random.default_rng(0))
    K = dense.se_gram(x.numpy(), x.numpy(), S)
    assert_allclose(found.a, solution(K, noise, y.numpy()), rtol=1e-6, atol=1e-7)


def test_many_outputs_have_smaller_blocks_and_are_solved_all_the_same():
    """1,500 rows are one block for two outputs, and two for three."""
    rng = np.random.default_rng(0)
    x, y = torch.tensor(rng.uniform(-6, 6, (1500, 2))), torch.tensor(rng.standard_normal((1500, 3)))
    task = MeanProblem(
        functions=PointBasis(x).at(kernel()),
        centres=x,
        targets=y,
        noise=torch.full((1500, 3), 0.5, dtype=torch.float64),
        coordinates=x / torch.tensor(S),
    )
    found = solve_mean(task, rng=np.random.default_rng(0))
    K = dense.se_gram(x.numpy(), x.numpy(), S)
    expected = K @ np.linalg.solve(K + 0.5 * np.eye(1500), y.numpy())
    assert_allclose(found.at_rows, expected, atol=0.02)


def test_time_ends_the_work():
    task = problem()
    calls = []
    solve_mean(task, rng=np.random.default_rng(0), seconds=0.0, follow=lambda s: calls.append(s))
    assert len(calls) == 1


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("seconds", "steps"), [(np.inf, 2), (1e9, 9)])
def test_a_time_that_is_given_is_used_while_the_error_falls(seconds, steps, shared, monkeypatch):
    """The error falls by 3% a step for eight steps: not worth it by itself, but for one who has the time."""
    errors = iter([*0.97 ** np.arange(8), *[0.97**7] * 9])
    monkeypatch.setattr(mean, "_error", lambda *_: next(errors))
    monkeypatch.setattr(sweeps, "BLOCK", 32)
    task, calls = problem(), []
    if not shared:
        task.x = None
    solve_mean(
        task,
        rng=np.random.default_rng(0),
        watch=(task.centres[:5], task.targets[:5]),
        seconds=seconds,
        follow=lambda solution: calls.append(solution) or False,
    )
    assert len(calls) == steps


@pytest.mark.parametrize("error", [0.0, np.nan])
def test_an_error_that_cannot_fall_ends_the_work(error, monkeypatch):
    """A constant target is met at once; the time that is left is not to be waited for."""
    monkeypatch.setattr(mean, "_error", lambda *_: error)
    task, calls = problem(), []
    watch = (task.centres[:5], task.targets[:5])
    rng = np.random.default_rng(0)
    solve_mean(task, rng=rng, watch=watch, seconds=60.0, follow=lambda s: calls.append(s) or False)
    assert len(calls) <= 2


def test_correcting_a_block_solves_its_equations():
    task = problem()
    a = torch.zeros_like(task.targets)
    index = torch.tensor([3, 7, 8, 21])
    correct_block(task, a, index)
    K = dense.se_gram(task.centres.numpy(), task.centres.numpy(), S)
    left = task.targets.numpy() - K @ a.numpy() - task.noise.numpy() * a.numpy()
    assert_allclose(left[index], 0, atol=1e-9)
    assert torch.count_nonzero(a) == 4 * P


def test_products_by_rows_are_the_products():
    x, y = rows(5000)
    functions = PointBasis(x[:30]).at(kernel())
    expected = dense.se_gram(x.numpy(), x[:30].numpy(), S) @ y[:30].numpy()
    assert_allclose(product_by_rows(functions, x, y[:30]), expected, atol=1e-9)
    assert_allclose(product_by_rows(functions.single(), x, y[:30]), expected, atol=1e-4)


def test_rows_with_noise_of_their_own_lower_the_energy_towards_the_least():
    task = problem()
    task.row_noise = torch.from_numpy(np.random.default_rng(2).uniform(0.02, 1, task.y.shape))
    sums = torch.zeros_like(task.targets)
    precision = sums.index_add(0, task.cell, 1 / task.row_noise)
    task.noise = 1 / precision
    task.targets = sums.index_add(0, task.cell, task.y / task.row_noise) / precision
    least = energy(task, least_squares(task))
    solver = _ByRefinement(task, np.random.default_rng(0), None, None)
    energies = []
    for _ in range(10):
        solver.step()
        energies.append(energy(task, solver.solution().a.numpy()))
    assert all(after <= before + 1e-3 for before, after in pairwise(energies))
    assert energies[-1] - least < 0.7 * (energies[0] - least)
    again = _ByRefinement(task, np.random.default_rng(1), None, solver.solution().a)
    assert_allclose(again.solution().at_rows, solver.solution().at_rows, atol=1e-3)
    again.step()
    assert energy(task, again.solution().a.numpy()) <= energies[-1] + 1e-3


def test_cells_average_what_joins_them():
    cells = Cells(1, 1)
    ones, none = np.ones(2), np.zeros((2, 1))
    cells.append(np.array([[0.0], [10.0]]), np.array([[1.0], [5.0]]), ones, none)
    cells.join(np.array([1, 1]), np.array([[8.0], [8.0]]), ones, none, np.array([0.3]))
    assert_allclose(cells.targets, [[1], [7]])
    assert_allclose(cells.counts, [1, 3])
    assert_allclose(cells.known, 0)
    cells.keep(np.array([1]))
    assert len(cells) == 1
    assert_allclose(cells.centres, [[10]])


def test_rows_join_a_cell_by_their_precision():
    """A cell of noise (0.5 + 0.1)/2, and two rows: the precisions add, and weigh the targets."""
    learnt, cells = np.array([0.5]), Cells(1, 1)
    cells.append(np.zeros((1, 1)), np.array([[1.0]]), np.array([2.0]), np.array([[0.1]]))
    weights, known, targets = (
        np.array([1.0, 4.0]),
        np.array([[0.0], [3.0]]),
        np.array([[2.0], [5.0]]),
    )
    cells.join(np.array([0, 0]), targets, weights, known, learnt)
    precision = np.array([2 / 0.6, 1 / 0.5, 4 / 3.5])
    assert_allclose(cells.counts, 7)
    assert_allclose(cells.counts / (learnt + cells.known[0]), precision.sum())
    assert_allclose(cells.targets[0, 0], precision @ [1, 2, 5] / precision.sum())


def test_nearest_and_nearby():
    rng = np.random.default_rng(0)
    x, z = rng.standard_normal((3000, 3)), rng.standard_normal((50, 3))
    distance = ((x[:, None] - z) ** 2).sum(-1)
    assert (nearest(x, z) == distance.argmin(1)).mean() > 0.999  # ties of float32 aside
    near = nearby(torch.tensor(x[:2]), torch.tensor(z), 5)
    assert set(near) == set(np.argsort(distance[0])[:5]) | set(np.argsort(distance[1])[:5])
