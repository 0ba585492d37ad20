"""No array of size N_m × M_α (× D) or M_α × M_α exists at any time: every tensor of a step is seen."""

import gpytorch
import numpy as np
import pytest
import torch

from decoupledgp import DecoupledGPRegressor
from decoupledgp.bases import MultiscaleBasis, PointBasis
from decoupledgp.kernels import se_ard
from decoupledgp.learners import GradientLearner
from decoupledgp.likelihoods import gaussian_likelihood
from decoupledgp.ops import backend, exponential
from decoupledgp.posteriors import DecoupledPosterior
from largest import LargestTensor

ROWS, M_ALPHA, M_BETA, D, BLOCK = 256, 3000, 16, 4, 1 << 14


@pytest.mark.parametrize("numba", [True, False])
@pytest.mark.parametrize("kind", ["points", "multiscale", "matern", "any"])
def test_a_step_keeps_nothing_large(kind, numba, monkeypatch):
    monkeypatch.setattr(exponential, "BLOCK_ELEMENTS", BLOCK)
    if not numba:
        monkeypatch.setattr(backend, "_numba_ready", lambda: False)
    x = torch.randn(M_ALPHA, D, generator=torch.Generator().manual_seed(0))
    basis = MultiscaleBasis if kind == "multiscale" else PointBasis
    others = {"matern": gpytorch.kernels.MaternKernel, "any": gpytorch.kernels.RQKernel}
    kernel = others[kind](ard_num_dims=D) if kind in others else se_ard(D)
    posterior = DecoupledPosterior(kernel, basis(x), basis(x[:M_BETA]))
    learner = GradientLearner(
        posterior, gaussian_likelihood(1), learning_rate=0.1, kl_batch_size=64
    )
    with LargestTensor() as seen:
        learner.step(
            x[:ROWS],
            x[:ROWS, :1],
            n_total=ROWS,
            iteration=1,
            rng=np.random.default_rng(0),
        )
    assert seen.largest >= 4 * M_ALPHA * D  # it looks: the gradient of the locations
    # Linear in M_α (features of the basis), or one block; a float64 of it at most.
    assert seen.largest <= max(4 * M_ALPHA * 2 * D, 8 * BLOCK, 8 * ROWS * M_BETA * D)
    assert seen.largest < 4 * ROWS * M_ALPHA / 8


def test_prediction_works_in_blocks(monkeypatch):
    """A hundred thousand rows against 2,000 functions: no tensor near their product."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 3))
    model = DecoupledGPRegressor(2000, 16, max_iter=2, basis_increment=1000, random_state=0)
    model.fit(X, X[:, 0])
    rows = rng.standard_normal((100_000, 3))
    with LargestTensor() as seen:
        mean, std = model.predict(rows, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert seen.largest <= max(8 * exponential.BLOCK_ELEMENTS, 8 * rows.size)
