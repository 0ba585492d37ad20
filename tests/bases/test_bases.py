"""Bases: growing, taking, joining; the kernel decides which functions they give."""

import gpytorch
import pytest
import torch
from numpy.testing import assert_allclose

from decoupledgp.bases import (
    BASES,
    KernelFunctions,
    MaternFunctions,
    MultiscaleBasis,
    PointBasis,
    SEFunctions,
)
from decoupledgp.kernels import (
    DoubleKernel,
    median_distance,
    median_distances,
    scaled_kernel,
    se_ard,
)

X = torch.randn(9, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("name", BASES)
def test_growing_keeps_the_old_functions(name):
    kernel = se_ard(3).double()
    basis = BASES[name](X[:4])
    with torch.no_grad():
        for parameter in basis.parameters():
            parameter.add_(0.1)
    before = basis.at(kernel).gram().detach()
    basis.add(X[4:7])
    after = basis.at(kernel)
    assert len(basis) == len(after) == 7
    assert_allclose(after.gram()[:4, :4].detach(), before, rtol=1e-12)
    # The new ones are φ_x: c = 1.
    expected = kernel(X[4:7], X[4:7]).to_dense()
    assert_allclose(after.gram()[4:, 4:].detach(), expected.detach(), rtol=1e-12)
    assert_allclose(after.evaluate(X)[:, 4:].detach(), kernel(X, X[4:7]).to_dense().detach())


@pytest.mark.parametrize(
    "kernel", [se_ard(3), gpytorch.kernels.MaternKernel(nu=1.5), gpytorch.kernels.RQKernel()]
)
@pytest.mark.parametrize("name", BASES)
def test_take_and_join(name, kernel):
    if name == "multiscale" and not isinstance(kernel, gpytorch.kernels.RBFKernel):
        pytest.skip("the multiscale basis is of the SE kernel")
    kernel = kernel.double()
    basis, index = BASES[name](X), torch.tensor([5, 0, 3])
    functions = basis.at(kernel)
    assert torch.equal(basis.take(index).at(kernel).gram(), functions.take(index).gram())
    rest = torch.tensor([1, 2, 4, 6, 7, 8])
    joined = functions.take(index).join(functions.take(rest))
    order = torch.cat([index, rest])
    assert_allclose(joined.gram().detach(), functions.gram()[order][:, order].detach(), rtol=1e-12)
    A = torch.randn(6, 2, dtype=torch.float64)
    cross = functions.take(index).gram(functions.take(rest))
    assert_allclose(
        functions.take(index).project(functions.take(rest), A).detach(), (cross @ A).detach()
    )
    assert_allclose(functions.diagonal().detach(), functions.gram().diagonal().detach())


def test_points_with_se_and_matern_kernels_take_the_fast_road():
    assert isinstance(PointBasis(X).at(se_ard(3)), SEFunctions)
    for nu in (0.5, 1.5, 2.5):
        for options in ({}, {"ard_num_dims": 3}):
            kernel = gpytorch.kernels.MaternKernel(nu=nu, **options).double()
            assert isinstance(PointBasis(X).at(kernel), MaternFunctions)
    for kernel in (
        gpytorch.kernels.MaternKernel(active_dims=(0, 2)),
        gpytorch.kernels.MaternKernel(batch_shape=torch.Size([1])),
        gpytorch.kernels.RBFKernel(active_dims=(0, 2)),
        se_ard(3) + gpytorch.kernels.LinearKernel(),
    ):
        assert isinstance(PointBasis(X).at(kernel.double()), KernelFunctions)


def test_multiscale_with_another_kernel_is_refused():
    with pytest.raises(ValueError, match='use basis="points"'):
        MultiscaleBasis(X).at(gpytorch.kernels.MaternKernel())


def test_features_far_from_the_origin_lose_no_digits():
    """Float32 at an offset of 1,000 length-scales: products are taken about the basis' own centre."""
    kernel = se_ard(3)
    kernel.lengthscale = 1.0
    far = X.float() + 1000
    for basis in (PointBasis(far), MultiscaleBasis(far)):
        got = basis.at(kernel).evaluate(far)
        expected = torch.exp(-0.5 * (far.double()[:, None] - far.double()).square().sum(-1))
        assert_allclose(got.detach(), expected, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_matern_functions_are_gpytorchs(nu, dtype):
    """Values and all gradients, at rows that coincide with functions too; and far from the origin.

    Of order 1/2 only where none coincide: there is no slope, and its rounding is another test's.
    """
    first = 5 if nu == 0.5 else 3
    kernel = gpytorch.kernels.MaternKernel(nu=nu, ard_num_dims=3).to(dtype)
    kernel.lengthscale = torch.tensor([0.5, 1.0, 2.0]).to(dtype)
    reference = gpytorch.kernels.MaternKernel(nu=nu, ard_num_dims=3).double()
    reference.lengthscale = torch.tensor([0.5, 1.0, 2.0]).double()
    tolerance = 1e-9 if dtype == torch.float64 else 2e-5
    for offset in (0.0, 1000.0):
        z, x = (X[:5] + offset).to(dtype), (X[first:] + offset).to(dtype).requires_grad_()
        A = torch.randn(5, 2, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
        fast = PointBasis(z)
        slow = PointBasis(z.double())
        far = x.detach().double().requires_grad_(), A.detach().double().requires_grad_()
        for name, call in {
            "evaluate": lambda f, x, A: f.evaluate(x),
            "matmul": lambda f, x, A: f.matmul(x, A),
            "gram": lambda f, x, A: f.gram(),
            "quadratic": lambda f, x, A: f.quadratic(A).reshape(1),
        }.items():
            if nu == 0.5 and name not in ("evaluate", "matmul"):
                continue
            got = call(fast.at(kernel), x, A)
            expected = call(KernelFunctions(reference, slow.locations), *far)
            assert_allclose(got.detach(), expected.detach(), atol=tolerance, err_msg=name)
            found, wanted = (
                torch.autograd.grad(
                    value.square().sum(),
                    [basis.locations, module.raw_lengthscale, *inputs],
                    materialize_grads=True,
                    allow_unused=True,
                )
                for value, basis, module, inputs in (
                    (got, fast, kernel, (x, A)),
                    (expected, slow, reference, far),
                )
            )
            for one, other in zip(found, wanted, strict=True):
                size = max(other.abs().max().item(), 1.0)
                assert_allclose(one, other, atol=20 * tolerance * size, err_msg=name)


@pytest.mark.parametrize("radius", [1.0, 10.0, 30.0, 43.0])
def test_the_error_where_places_meet_is_known(radius):
    """Order 1/2 in float32, where a squared distance of zero comes out as the rounding of large ones."""
    z = torch.randn(2000, 20, generator=torch.Generator().manual_seed(0))
    z *= radius / z.norm(dim=1, keepdim=True)
    functions = PointBasis(z).at(gpytorch.kernels.MaternKernel(nu=0.5, ard_num_dims=20))
    s = functions.s.detach()
    functions = MaternFunctions(z * s, s, 0.5)
    error = (1 - functions.evaluate(z * s).diagonal()).max().item()
    assert error <= functions.meeting_error <= 10 * error
    assert PointBasis(z).at(gpytorch.kernels.MaternKernel(nu=1.5)).meeting_error == 0


@pytest.mark.parametrize("nu", [0.5, 1.5])
def test_a_matern_gram_matrix_far_from_the_origin_loses_no_digits(nu):
    """Float32 at an offset of 10,000 with a length-scale of 0.3, by which quotients are rounded."""
    z = X.float() + 1e4
    kernel = gpytorch.kernels.MaternKernel(nu=nu)
    kernel.lengthscale = 0.3
    reference = gpytorch.kernels.MaternKernel(nu=nu).double()
    reference.lengthscale = kernel.lengthscale.detach().double()
    got = PointBasis(z).at(kernel).gram().detach()
    centred = z.double() - 1e4
    assert_allclose(got, reference(centred).to_dense().detach(), atol=1e-5)


def test_a_matern_gram_matrix_of_twins_is_symmetric_with_ones():
    z = torch.cat([X, X]).float() * 1e4
    functions = PointBasis(z).at(gpytorch.kernels.MaternKernel(nu=1.5))
    gram = functions.gram().detach()
    assert torch.equal(gram, gram.T)
    assert_allclose(gram.diagonal(), 1, rtol=1e-6)
    assert_allclose(gram[:9, 9:].diagonal(), 1, rtol=1e-6)


def test_double_kernel_is_the_kernel_in_float64_with_gradients():
    kernel = gpytorch.kernels.MaternKernel(ard_num_dims=3) * gpytorch.kernels.LinearKernel()
    doubled = DoubleKernel(kernel)(X, X[:2])
    assert doubled.dtype == torch.float64
    reference = kernel.double()(X, X[:2]).to_dense()
    assert_allclose(doubled.detach(), reference.detach(), rtol=1e-7)
    kernel = kernel.float()
    DoubleKernel(kernel)(X).sum().backward()
    assert all(p.grad is not None for p in kernel.parameters())


def test_double_kernel_leaves_a_sub_kernel_that_occurs_twice_alone():
    part = gpytorch.kernels.MaternKernel()
    kernel = part + part * gpytorch.kernels.LinearKernel()
    got = DoubleKernel(kernel)(X, X[:2])
    assert isinstance(part.raw_lengthscale, torch.nn.Parameter)
    assert part.raw_lengthscale.dtype == torch.float32
    assert_allclose(got.detach(), kernel.double()(X, X[:2]).to_dense().detach(), rtol=1e-6)


def test_scaled_kernel_splits_the_scale_off():
    inner = gpytorch.kernels.MaternKernel()
    outer = gpytorch.kernels.ScaleKernel(inner)
    outer.outputscale = 3.0
    scaled = scaled_kernel(outer, 2)
    assert scaled.base_kernel is inner
    assert_allclose(scaled.outputscale.detach(), [3.0, 3.0], rtol=1e-6)
    assert_allclose(scaled_kernel(inner, 2).outputscale.detach(), [1.0, 1.0])
    assert scaled_kernel(scaled, 2) is scaled


def test_median_distance():
    x = torch.tensor([[0.0], [3.0], [4.0]])
    assert median_distance(x) == 3.0
    assert median_distance(torch.tensor([[1.0], [1.0], [1.0], [5.0]])) == 4.0  # repeats say nothing
    assert median_distance(torch.ones(4, 2)) == 2.0
    assert median_distance(torch.ones(1, 2)) == 2.0


def test_median_distances_are_of_one_feature_each():
    x = torch.tensor([[0.0, 10.0, 7.0], [3.0, 20.0, 7.0], [4.0, 50.0, 7.0]])
    found = median_distances(x)
    assert found.dtype == x.dtype
    assert_allclose(found, [3, 30, 2**0.5])  # a constant says nothing


def test_median_distance_of_a_long_table_looks_at_few_rows():
    """All pairs of these would be 80 GB; the median distance of two uniform numbers is 1 - √½."""
    x = torch.rand(100_000, 1, generator=torch.Generator().manual_seed(0))
    assert abs(median_distance(x) - (1 - 0.5**0.5)) < 0.02
