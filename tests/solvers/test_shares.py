"""How much each share of rows and functions would leave unknown, against dense posterior variances."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from decoupledgp.solvers.shares import Share, best_share, left_unknown

RNG = np.random.default_rng(0)
X = torch.from_numpy(RNG.uniform(-1, 1, (6000, 2)))


def smooth(scale):
    kernel = RBFKernel().double()
    kernel.lengthscale = scale
    return kernel


def rough():
    kernel = MaternKernel(nu=0.5).double()
    kernel.lengthscale = 1.0
    return kernel


def scaled(kernel, *scales):
    whole = ScaleKernel(kernel, batch_shape=torch.Size([len(scales)])).double()
    whole.outputscale = torch.tensor(scales, dtype=torch.float64)
    return whole


def variance(kernel, x, new, noise, functions=None):
    """The mean posterior variance of f at new rows; of the best q(f) on some functions if given."""
    with torch.no_grad():
        K = {
            name: kernel(a, b).to_dense().numpy()
            for name, (a, b) in {
                "xx": (x, x),
                "nx": (new, x),
                "nn": (new, new),
                "zz": (functions, functions),
                "zx": (functions, x),
                "zn": (functions, new),
            }.items()
            if a is not None and b is not None
        }
    if functions is None:
        inverse = np.linalg.inv(K["xx"] + noise * np.eye(len(x)))
        return np.mean(np.diag(K["nn"]) - np.sum((K["nx"] @ inverse) * K["nx"], 1))
    zz = K["zz"] + 1e-8 * np.eye(len(functions))
    precision = zz + K["zx"] @ K["zx"].T / noise
    known = np.linalg.inv(zz) - np.linalg.inv(precision)
    return np.mean(np.diag(K["nn"]) - np.sum((K["zn"].T @ known) * K["zn"].T, 1))


def test_a_function_per_row_is_the_exact_posterior():
    found = left_unknown(smooth(0.3), X, 0.2, Share(400, 400))
    exact = variance(smooth(0.3), X[:400], X[400:912], 0.2)
    np.testing.assert_allclose(found, exact, rtol=1e-4)


@pytest.mark.parametrize("noise", [0.1, 2.0])
def test_functions_that_several_rows_share(noise):
    """Sparse inference on 150 of 1,200 rows, dense, knows about as much as is said."""
    found = left_unknown(smooth(0.4), X, noise, Share(1200, 150))
    dense = variance(smooth(0.4), X[:1200], X[1200:1712], noise, functions=X[:150])
    assert 0.5 < found / dense < 2


@pytest.mark.parametrize(
    ("kernel", "noise", "most"),
    [(rough(), 1e-3, 1.4), (rough(), 0.5, 1.4), (smooth(0.3), 0.5, 1.4), (smooth(0.3), 1e-3, 2.5)],
)
def test_sizes_beyond_the_pilot_follow_its_power_law(kernel, noise, most):
    """A smooth function without noise is known sooner than that, but not for ever."""
    found = left_unknown(kernel, X, noise, Share(1500, 1500), pilot=256)
    dense = variance(kernel, X[:1500], X[1500:2012], noise)
    assert 0.7 < found / dense < most


def test_noisy_rows_are_all_wanted_and_clean_ones_get_functions_of_their_own():
    few, all_rows = Share(2000, 2000), Share(60000, 400)
    assert (
        best_share(scaled(smooth(0.5), 1.0), X, torch.tensor([30.0]), [few, all_rows]) == all_rows
    )
    assert best_share(scaled(rough(), 1.0), X, torch.tensor([1e-4]), [few, all_rows]) == few


def test_outputs_count_by_their_scale():
    """One of the two is faint under much noise, and would rather have all rows."""
    few, all_rows, noise = Share(2000, 2000), Share(60000, 400), torch.tensor([1e-4, 30.0])
    assert best_share(scaled(rough(), 1.0, 1e-3), X, noise, [few, all_rows]) == few
    assert best_share(scaled(rough(), 1e-3, 1.0), X, noise, [few, all_rows]) == all_rows
