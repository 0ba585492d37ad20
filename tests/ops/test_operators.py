"""The operators against dense formulas, values and all gradients, over generated shapes and scales."""

from contextlib import contextmanager
from functools import partial

import gpytorch
import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import dense
from decoupledgp import ops
from decoupledgp.ops import backend, exponential, multiscale, threads

TOLERANCE = {torch.float64: 1e-10, torch.float32: 5e-4}  # sums of both signs may cancel
dtypes = st.sampled_from(list(TOLERANCE))
sizes = st.integers(1, 40)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of 64 numbers, so that small matrices have several, the last one smaller."""
    monkeypatch.setattr(exponential, "BLOCK_ELEMENTS", 64)


def values(seed, dtype, *shapes, scale=1.0):
    rng = np.random.default_rng(seed)
    return [
        torch.tensor(scale * rng.standard_normal(shape), dtype=dtype, requires_grad=True)
        for shape in shapes
    ]


def agree(got, expected, inputs, dtype):
    """Compare values and gradients of a random linear function of both."""
    weight = torch.randn(got.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ours = torch.autograd.grad((weight.to(dtype) * got).sum(), inputs)
    double = torch.autograd.grad((weight * expected).sum(), inputs, retain_graph=True)
    for one, other in zip((got, *ours), (expected, *double), strict=True):
        size = max(other.abs().max().item(), 1e-30)
        assert_allclose(
            one.detach().double() / size, other.detach().double() / size, atol=TOLERANCE[dtype]
        )


@contextmanager
def as_on(numba, workers):
    """Run as on a machine with or without Numba, and with so many threads."""
    before, ready = torch.get_num_threads(), backend._numba_ready
    torch.set_num_threads(workers)
    backend._numba_ready = ready if numba else lambda: False
    try:
        yield
    finally:
        backend._numba_ready = ready
        torch.set_num_threads(before)


@given(
    st.integers(0, 999),
    dtypes,
    sizes,
    sizes,
    st.integers(1, 5),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from([1, 2]),
    st.lists(st.booleans(), min_size=4, max_size=4).filter(any),
)
@settings(max_examples=80, deadline=None)
def test_exp_matmul(seed, dtype, n, m, q, p, numba, workers, wanted):
    """Also when only some gradients are asked for."""
    F, G, b, A = inputs = values(seed, dtype, (n, q), (m, q), (m,), (m, p))
    for tensor, want in zip(inputs, wanted, strict=True):
        tensor.requires_grad_(want)
    some = [tensor for tensor, want in zip(inputs, wanted, strict=True) if want]
    expected = torch.exp(F.double() @ G.double().T + b.double()) @ A.double()
    with as_on(numba, workers):
        agree(ops.exp_matmul(*inputs), expected, some, dtype)


def dense_matern(exponents, nu):
    """From the definition; the square root's gradient at 0 is infinite, so not quite 0."""
    t = (-4 * nu * exponents).clamp_min(0).add(1e-30).sqrt()
    polynomial = {0.5: torch.ones_like(t), 1.5: 1 + t, 2.5: 1 + t + t.square() / 3}[nu]
    return polynomial * torch.exp(-t)


@given(
    st.integers(0, 999),
    dtypes,
    sizes,
    sizes,
    st.integers(1, 5),
    st.integers(1, 3),
    st.sampled_from(ops.MATERN_ORDERS),
    st.booleans(),
    st.sampled_from([1, 2]),
    st.lists(st.booleans(), min_size=4, max_size=4).filter(any),
)
@settings(max_examples=80, deadline=None)
def test_matern_matmul(seed, dtype, n, m, q, p, nu, numba, workers, wanted):
    """Also when only some gradients are asked for; b keeps most exponents below zero.

    Far below for order 1/2, whose slope is so steep at zero that float32 does not know it there.
    """
    F, G, b, A = inputs = values(seed, dtype, (n, q), (m, q), (m,), (m, p))
    b.data -= 2 * q
    for tensor, want in zip(inputs, wanted, strict=True):
        tensor.requires_grad_(want)
    some = [tensor for tensor, want in zip(inputs, wanted, strict=True) if want]
    exponents = F.double() @ G.double().T + b.double()
    hypothesis.assume(float(exponents.detach().max()) < (-0.1 if nu == 0.5 else -1e-3))
    with as_on(numba, workers):
        agree(ops.matern_matmul(*inputs, nu), dense_matern(exponents, nu) @ A.double(), some, dtype)


@given(st.integers(0, 999), dtypes, sizes, sizes, st.sampled_from(ops.MATERN_ORDERS), st.booleans())
@settings(max_examples=30, deadline=None)
def test_matern_values(seed, dtype, n, m, nu, numba):
    (exponents,) = values(seed, dtype, (n, m), scale=3.0)
    exponents.data = -exponents.data.abs() - 1e-3
    with as_on(numba, 1):
        agree(ops.matern(exponents, nu), dense_matern(exponents.double(), nu), [exponents], dtype)


@pytest.mark.parametrize("numba", [True, False])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("nu", "slope"), [(0.5, 0.0), (1.5, 3.0), (2.5, 5 / 3)])
def test_matern_where_places_meet_and_far_away(nu, slope, dtype, numba):
    """Rounding makes a squared distance of zero slightly negative; one and its slope are right there."""
    e = torch.tensor([[0.0, 1e-7, -1e12, float("nan")]], dtype=dtype, requires_grad=True)
    with as_on(numba, 1):
        got = ops.matern(e, nu)
        (slopes,) = torch.autograd.grad(got[0, :3].sum(), e)
        without = ops.matern(e.detach(), nu)
    assert_allclose(got.detach()[0, :2], 1)
    assert_allclose(slopes[0, :2], slope, rtol=1e-6)
    assert got[0, 2] < 1e-20
    assert got[0, 3].isnan()
    assert_allclose(without, got.detach())


@given(st.integers(0, 999), dtypes, sizes, st.integers(1, 9), st.integers(1, 20))
@settings(max_examples=30, deadline=None)
def test_row_norms(seed, dtype, n, k, p):
    K, V = inputs = values(seed, dtype, (n, k), (p, k, k))
    expected = (K.double() @ V.double()).square().sum(-1).T
    for workers in (1, 2):
        with as_on(True, workers):
            agree(ops.row_norms(K, V), expected, inputs, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_exponential_is_accurate_and_keeps_nan_and_infinity(dtype):
    x = torch.linspace(-80, 80, 5001, dtype=dtype)
    got = backend.exp_in_place(x.clone())
    accuracy = {torch.float32: 2e-7, torch.float64: 1e-15}[dtype]
    assert_allclose(got, x.double().exp(), rtol=accuracy)
    inf, nan = float("inf"), float("nan")
    special = backend.exp_in_place(torch.tensor([0, 1e5, inf, -inf, -1e5, nan], dtype=dtype))
    assert special[0] == 1
    assert (special[1:3] == inf).all()
    assert (special[3:5] < 1e-37).all()
    assert special[5].isnan()


@pytest.mark.parametrize("workers", [1, 3])
def test_jobs_keep_their_order_and_compute_on_one_thread_each(workers):
    with as_on(True, workers):
        inside = threads.run_all([torch.get_num_threads] * 5, torch.device("cpu"))
        nested = threads.run_all(
            [lambda: threads.run_all([lambda: 1, lambda: 2], torch.device("cpu"))] * 4,
            torch.device("cpu"),
        )
        order = threads.run_all([partial(int, k) for k in range(20)], torch.device("cpu"))
        assert torch.get_num_threads() == workers
    assert inside == [1] * 5
    assert nested == [[1, 2]] * 4
    assert order == list(range(20))


def test_an_error_in_a_job_reaches_the_caller():
    with as_on(True, 2), pytest.raises(ZeroDivisionError):
        threads.run_all([lambda: 1 / 0, lambda: 1], torch.device("cpu"))


@given(st.integers(0, 999), dtypes, sizes, sizes, st.integers(1, 3))
@settings(max_examples=15, deadline=None)
def test_kernel_matmul(seed, dtype, n, m, p):
    x, z, A = values(seed, dtype, (n, 2), (m, 2), (m, p))
    kernel = gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=2).to(dtype)
    s = kernel.raw_lengthscale
    scale = torch.nn.functional.softplus(s.double())
    r = 5**0.5 * ((x.double()[:, None] - z.double()) / scale).square().sum(-1).add(1e-30).sqrt()
    expected = ((1 + r + r**2 / 3) * torch.exp(-r)) @ A.double()
    agree(ops.kernel_matmul(kernel, x, z, A), expected, [x, z, A, s], dtype)


def multiscale_inputs(seed, dtype, m, n, d, p, spread):
    z_i, l_i, A_i, z_j, l_j, A_j = values(
        seed, dtype, (m, d), (m, d), (m, p), (n, d), (n, d), (n, p)
    )
    with torch.no_grad():
        l_i.mul_(spread).exp_()
        l_j.mul_(spread).exp_()
        z_j[: min(m, n)] = z_i[: min(m, n)]  # duplicated points
    return [z_i, l_i, A_i, z_j, l_j, A_j]


def dense_gram(z_i, l_i, z_j, l_j):
    z_i, l_i, z_j, l_j = (t.double() for t in (z_i, l_i, z_j, l_j))
    total = l_i[:, None] ** 2 + l_j**2
    log = 0.5 * torch.log(2 * l_i[:, None] * l_j / total) - (z_i[:, None] - z_j) ** 2 / total
    return log.sum(-1).exp()


@given(
    st.integers(0, 999),
    dtypes,
    sizes,
    sizes,
    st.integers(1, 6),
    st.integers(1, 3),
    st.sampled_from([0.3, 3.0]),
)
@settings(max_examples=40, deadline=None)
def test_multiscale_operators(seed, dtype, m, n, d, p, spread):
    """Both implementations of the quadratic; length-scales from e⁻⁶ to e⁶."""
    inputs = multiscale_inputs(seed, dtype, m, n, d, p, spread)
    z_i, l_i, A_i, z_j, l_j, A_j = inputs
    K = dense_gram(z_i, l_i, z_j, l_j)
    agree(ops.multiscale_gram(z_i, l_i, z_j, l_j), K, [z_i, l_i, z_j, l_j], dtype)
    some = [z_i, l_i, z_j, l_j, A_j]
    agree(ops.multiscale_matmul(*some), K @ A_j.double(), some, dtype)
    expected = ((A_i.double() @ A_j.double().T) * K).sum()
    agree(ops.multiscale_quadratic(*inputs), expected, inputs, dtype)
    plain = [t.detach() for t in (z_i, l_i, z_j, l_j)]
    weight = torch.randn(m, n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    pair_gradients = torch.autograd.grad(
        (weight * K).sum(), [z_i, l_i, z_j, l_j], retain_graph=True
    )
    T = (weight * K).detach().to(dtype)
    for gram, back in (
        (multiscale._fused_gram, multiscale._fused_gram_gradients),
        (multiscale._pair_kernel, multiscale._pair_gradients),
    ):
        assert_allclose(gram(*plain), K.detach(), atol=TOLERANCE[dtype])
        for one, other in zip(back(T, *plain), pair_gradients, strict=True):
            size = max(other.abs().max().item(), 1e-30)
            assert_allclose(one / size, other / size, atol=TOLERANCE[dtype])
    gradients = torch.autograd.grad(expected, inputs)
    for run in (multiscale._fused_quadratic, multiscale._blocked_quadratic):
        got = run(*(t.detach() for t in inputs), gradients=True)
        for one, other in zip(got, (expected, *gradients), strict=True):
            size = max(other.abs().max().item(), 1e-30)
            error = (one.double() - other.double()).abs().max().item() / size
            assert error < 10 * TOLERANCE[dtype], run.__name__  # terms of both signs cancel


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_many_dimensions_do_not_overflow(dtype):
    """The product over 200 dimensions of (l_i² + l_j²) is far outside every float's range."""
    inputs = multiscale_inputs(0, dtype, 3, 4, 200, 1, 0.1)
    with torch.no_grad():
        for k in (0, 1, 3, 4):
            inputs[k].mul_(1e6)
    expected = dense_gram(*(inputs[k] for k in (0, 1, 3, 4)))
    got = ops.multiscale_gram(*(inputs[k] for k in (0, 1, 3, 4)))
    assert_allclose(got.detach(), expected.detach(), rtol=TOLERANCE[dtype], atol=1e-18)
    for run in (multiscale._fused_quadratic, multiscale._blocked_quadratic):
        assert all(t.isfinite().all() for t in run(*(t.detach() for t in inputs), gradients=True))


def test_functions_of_very_different_width_are_orthogonal_not_nan():
    z = torch.zeros(2, 30)
    l = torch.tensor([[1e-8], [1e8]]).expand(2, 30).contiguous()
    for run in (multiscale._fused_quadratic, multiscale._blocked_quadratic):
        value, *grads = run(z, l, torch.ones(2, 1), z, l, torch.ones(2, 1), gradients=True)
        assert_allclose(value, 2.0, rtol=1e-5)
        assert all(g.isfinite().all() for g in grads)


def test_gram_matches_the_written_definition():
    z_i, l_i, _, z_j, l_j, _ = multiscale_inputs(1, torch.float64, 5, 4, 3, 1, 0.5)
    arrays = (t.detach().numpy() for t in (z_i, l_i, z_j, l_j))
    assert_allclose(
        ops.multiscale_gram(z_i, l_i, z_j, l_j).detach(), dense.multiscale_gram(*arrays), rtol=1e-12
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_the_fused_loop_does_not_depend_on_threads(workers):
    inputs = [t.detach() for t in multiscale_inputs(0, torch.float32, 600, 50, 3, 2, 0.3)]
    reference = multiscale._fused_quadratic(*inputs, gradients=True)
    with as_on(True, workers):
        again = multiscale._fused_quadratic(*inputs, gradients=True)
    assert all(torch.equal(a, b) for a, b in zip(reference, again, strict=True))


def test_no_functions_at_all():
    F, G, b, A = torch.ones(3, 2), torch.ones(0, 2), torch.ones(0), torch.ones(0, 1)
    assert torch.equal(ops.exp_matmul(F, G, b, A), torch.zeros(3, 1))
    empty = torch.ones(0, 2)
    assert ops.multiscale_quadratic(empty, empty, A, empty, empty, A).item() == 0
