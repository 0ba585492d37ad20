"""Kernels that GPyTorch evaluates: rows in several threads would see each other's half-made changes."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, RQKernel
from numpy.testing import assert_allclose

from decoupledgp import DecoupledGPRegressor
from waves import rows

pytestmark = pytest.mark.usefixtures("few_groups")


@pytest.fixture
def threads():
    """Return a function that sets how many threads PyTorch may use, for this test."""
    usual = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(usual)


def columns_apart():
    return RBFKernel(active_dims=[0]) + MaternKernel(active_dims=[1])


def test_a_kernel_of_some_columns_keeps_them_with_several_threads(threads):
    X, y = rows(1100)  # more than are learnt from exactly
    many, _ = rows(8000, seed=1)
    threads(4)
    model = DecoupledGPRegressor(kernel=columns_apart(), random_state=0).fit(X, y)
    found = model.predict(many)
    parts = [part.active_dims.tolist() for part in model.kernel_.base_kernel.kernels]
    assert parts == [[0], [1]]
    threads(1)
    assert_allclose(found, model.predict(many), atol=1e-9)


def test_prediction_leaves_a_float32_kernel_as_it_was(threads):
    threads(4)
    X, y = rows(300)
    model = DecoupledGPRegressor(50, 10, kernel=RQKernel(), max_iter=3, random_state=0)
    model.fit(X, y)
    model.predict(rows(20_000, seed=1)[0])
    raw = model.kernel_.base_kernel.raw_lengthscale
    assert isinstance(raw, torch.nn.Parameter)
    assert raw.dtype == torch.float32
    model.partial_fit(X, y)
    assert np.isfinite(model.predict(X)).all()
