"""The penalty on priors that are wider than the targets."""

import numpy as np
import pytest
import torch

from decoupledgp.kernels import scaled_kernel, se_ard
from decoupledgp.likelihoods import gaussian_likelihood
from decoupledgp.solvers.breadth import Breadth
from decoupledgp.solvers.neighbourhoods import GroupEvidence, Prior
from decoupledgp.solvers.rows import Rows
from differences import assert_gradients


def prior(scales=(1.0, 1.0), lengthscale=0.7):
    kernel = scaled_kernel(se_ard(3).double(), len(scales)).double()
    kernel.base_kernel.lengthscale = lengthscale
    kernel.outputscale = torch.tensor(scales).double()
    return kernel


def table(n=3000, outputs=2, seed=0):
    rng = np.random.default_rng(seed)
    return Rows.plain(
        torch.tensor(rng.standard_normal((n, 3))), torch.tensor(rng.standard_normal((n, outputs)))
    )


def test_it_is_the_ratio_of_variances_over_far_pairs():
    """With short length-scales rows are independent, and the expected variance is the scale itself."""
    found = Breadth(table())(prior((5.0, 20.0), lengthscale=0.01)).item()
    assert found == pytest.approx(0.5 * (np.log(5) ** 2 + np.log(20) ** 2), rel=0.1)


def test_long_length_scales_may_have_large_scales():
    """A line over the rows is a wide prior seen in a small window: E ½(f - f')² = ρ² mean(d²)/2ℓ²."""
    rows, wide = table(), prior((50.0, 50.0), lengthscale=10.0)
    assert Breadth(rows)(wide).item() < 0.6 < np.log(50) ** 2


def test_narrow_priors_and_constant_targets_cost_nothing():
    rows = table()
    assert Breadth(rows)(prior((0.5, 0.1))).item() == 0
    rows.y[:] = 3.0
    assert Breadth(rows)(prior((5.0, 5.0))).item() == 0
    assert Breadth(rows.take(np.arange(1)))(prior((5.0, 5.0))).item() == 0


def test_gradients_of_the_evidence_with_a_wide_prior_match_differences():
    rows, kernel = table(60), prior((5.0, 20.0))
    likelihood = gaussian_likelihood(2).double()
    likelihood.noise = 0.3
    p = Prior(kernel, likelihood)
    evidence = GroupEvidence(p, rows, [np.arange(40), np.arange(20, 60)], p.free)
    assert Breadth(rows)(kernel).item() > 1
    assert_gradients(evidence, p.free)
