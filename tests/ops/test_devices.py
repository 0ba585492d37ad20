"""The device-neutral path, run on PyTorch's "meta" device: tensors there have no numbers, so any
`.cpu()`, NumPy round trip or look at a value on the way from parameters to gradients is an error.

GPyTorch's own kernels and likelihoods look at values, so they cannot be tried in this way."""

import pytest
import torch

from decoupledgp.bases import MultiscaleBasis, PointBasis
from decoupledgp.kernels import se_ard
from decoupledgp.posteriors import DecoupledPosterior, kl_divergence

N, D, P = 50, 3, 2


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("basis", [MultiscaleBasis, PointBasis])
def test_a_step_never_leaves_the_device(basis, shared, dtype):
    posterior = DecoupledPosterior(
        se_ard(D),
        basis(meta(40, D, dtype=dtype)),
        basis(meta(10, D, dtype=dtype)),
        n_outputs=P,
        partially_shared=shared,
    )
    parameters = list(posterior.parameters())
    assert all(p.is_meta for p in parameters)
    optimizer = torch.optim.Adam(parameters)
    columns = torch.empty(8, dtype=torch.int64, device="meta")
    x, y = meta(N, D, dtype=dtype), meta(N, P, dtype=dtype)
    q = posterior.measure()
    loss = (y - q.mean(x)).square().sum() + q.variance(x).sum() + kl_divergence(q, columns=columns)
    loss.backward()
    assert loss.is_meta
    for parameter in parameters:
        assert parameter.grad is not None
        assert parameter.grad.is_meta
        assert parameter.grad.shape == parameter.shape
    optimizer.step()


def test_predictions_stay_on_the_device():
    posterior = DecoupledPosterior(
        se_ard(D), MultiscaleBasis(meta(40, D)), MultiscaleBasis(meta(10, D)), n_outputs=P
    )
    with torch.no_grad():
        q = posterior.measure(double=True)
        x = meta(N, D, dtype=torch.float64)
        assert q.mean(x).is_meta
        assert q.variance(x).is_meta
