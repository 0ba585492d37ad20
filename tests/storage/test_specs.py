"""Kernels and likelihoods are rebuilt from files, or asked for."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from gpytorch import kernels as gk
from gpytorch import likelihoods as gl
from gpytorch.constraints import GreaterThan, Interval, LessThan, Positive
from gpytorch.priors import GammaPrior
from torch.nn.functional import softplus

from decoupledgp import DecoupledGPRegressor
from decoupledgp.kernels import log_positive
from decoupledgp.storage import ModelFileError, specs
from saved_models import (
    D,
    assert_same_learner,
    assert_same_predictions,
    fitted,
    rows,
    saved_and_loaded,
)

BATCH = torch.Size([2])
KERNELS = {
    "RBF": lambda: gk.RBFKernel(lengthscale_constraint=log_positive()),
    "RBF ard batch": lambda: gk.RBFKernel(ard_num_dims=D, batch_shape=BATCH),
    "Matern": lambda: gk.MaternKernel(nu=0.5, active_dims=[2, 0]),
    "RQ": lambda: gk.RQKernel(alpha_constraint=Interval(0.1, 7.3), ard_num_dims=D),
    "Periodic": lambda: gk.PeriodicKernel(period_length_constraint=LessThan(3.3)),
    "Periodic ard": lambda: gk.PeriodicKernel(ard_num_dims=D),
    "Linear": lambda: gk.LinearKernel(ard_num_dims=D, variance_constraint=GreaterThan(1e-3)),
    "Polynomial": lambda: gk.PolynomialKernel(power=3, batch_shape=BATCH),
    "Cosine": lambda: gk.CosineKernel(period_length_constraint=Positive(softplus)),
    "Constant": lambda: gk.ConstantKernel(batch_shape=BATCH),
    "PiecewisePolynomial": lambda: gk.PiecewisePolynomialKernel(q=1),
    "Scale": lambda: gk.ScaleKernel(gk.RBFKernel(batch_shape=BATCH, active_dims=(1,))),
    "bounds": lambda: gk.RBFKernel(
        ard_num_dims=2,
        active_dims=(0, 1),
        lengthscale_constraint=GreaterThan(torch.tensor([0.1, 1.0])),
    ),
    "no transform": lambda: gk.RBFKernel(
        lengthscale_constraint=Interval(0.1, 9, transform=None, initial_value=2.0)
    ),
    "nested": lambda: (
        gk.ScaleKernel(gk.RBFKernel() * gk.PeriodicKernel() + gk.ConstantKernel())
        * gk.ScaleKernel(gk.MaternKernel(nu=1.5, active_dims=(0,)) + gk.LinearKernel())
    ),
}  # fmt: skip
LIKELIHOODS = {
    "Gaussian": lambda: gl.GaussianLikelihood(noise_constraint=log_positive(1e-6)),
    "Gaussian batch": lambda: gl.GaussianLikelihood(batch_shape=BATCH),
    "StudentT": lambda: gl.StudentTLikelihood(deg_free_constraint=Interval(2.5, 40)),
    "Laplace": lambda: gl.LaplaceLikelihood(batch_shape=BATCH),
    "Beta": lambda: gl.BetaLikelihood(),
    "Bernoulli": lambda: gl.BernoulliLikelihood(),
    "Poisson": lambda: gl.PoissonLikelihood(),
}


def rebuilt(module):
    """Through JSON and tensors, with all parameters moved away from their defaults before."""
    with torch.no_grad():
        for k, value in enumerate(module.parameters()):
            value.add_(0.3 * torch.randn(value.shape, generator=torch.Generator().manual_seed(k)))
    spec = json.loads(json.dumps(specs.describe(module)))
    assert spec["type"] != "custom"
    stored = {name: value.detach().clone() for name, value in specs.state(module).items()}
    return specs.rebuild(spec, stored, None, "module")


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_plain_kernels_are_rebuilt_bit_for_bit(name, double):
    kernel = KERNELS[name]()
    kernel = kernel.double() if double else kernel
    x = torch.randn(6, D, generator=torch.Generator().manual_seed(0), dtype=kernel.dtype)
    other = copy.deepcopy(kernel)
    result = rebuilt(kernel)
    assert torch.equal(result(x).to_dense(), kernel(x).to_dense())
    assert not torch.equal(other(x).to_dense(), kernel(x).to_dense())
    pairs = zip(kernel.named_parameters_and_constraints(),
                result.named_parameters_and_constraints(), strict=True)  # fmt: skip
    for (a_name, a, a_constraint), (b_name, b, b_constraint) in pairs:
        assert (a_name, type(a_constraint)) == (b_name, type(b_constraint))
        assert torch.equal(a_constraint.transform(a), b_constraint.transform(b))
        value = a_constraint.transform(a)
        assert torch.equal(
            a_constraint.inverse_transform(value), b_constraint.inverse_transform(value)
        )


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_plain_likelihoods_are_rebuilt_bit_for_bit(name):
    likelihood = LIKELIHOODS[name]()
    result = rebuilt(likelihood)
    f = torch.linspace(-1, 1, 5)
    for moment in ("mean", "variance"):
        a, b = (getattr(each(f), moment) for each in (likelihood, result))
        assert torch.equal(a, b)


def test_quadrature_is_stored_with_its_likelihood():
    torch.set_default_dtype(torch.float64)
    try:
        likelihood = gl.StudentTLikelihood()
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(rebuilt(likelihood).quadrature.locations, likelihood.quadrature.locations)


class Warped(gk.RBFKernel):
    """A user's kernel."""

    def forward(self, x1, x2, diag=False, **params):
        return super().forward(x1.tanh(), x2.tanh(), diag=diag, **params)


def test_custom_kernel_must_be_passed_again(tmp_path):
    path = tmp_path / "model"
    model = fitted(kernel=gk.ScaleKernel(Warped(ard_num_dims=D)))
    model.save(path)
    with pytest.raises(ModelFileError, match=r"because of .*Warped; .*kernel="):
        DecoupledGPRegressor.load(path)
    with pytest.raises(ModelFileError, match=r"RBFKernel at 'base_kernel'.*Warped"):
        DecoupledGPRegressor.load(path, kernel=gk.ScaleKernel(gk.RBFKernel(ard_num_dims=D)))
    with pytest.raises(ModelFileError, match=r"raw_lengthscale.*\(1, 2\).*\(1, 3\)"):
        DecoupledGPRegressor.load(path, kernel=gk.ScaleKernel(Warped(ard_num_dims=2)))
    given = gk.ScaleKernel(Warped(ard_num_dims=D))
    given.outputscale = 5.0
    model, loaded = saved_and_loaded(model, path, kernel=given)
    assert_same_predictions(model, loaded, rows()[0])
    for each in (model, loaded):
        each.partial_fit(*rows(seed=1))
    assert_same_learner(model, loaded)


def test_custom_likelihood_must_be_passed_again(tmp_path):
    class Mine(gl.LaplaceLikelihood):
        pass

    model = fitted(likelihood=Mine())
    model.save(tmp_path / "model")
    with pytest.raises(ModelFileError, match=r"Mine.*likelihood="):
        DecoupledGPRegressor.load(tmp_path / "model")
    model, loaded = saved_and_loaded(model, tmp_path / "model", likelihood=Mine())
    assert_same_predictions(model, loaded, rows()[0])


def test_shared_parameters_stay_shared(tmp_path):
    def tied():
        one, other = gk.MaternKernel(nu=0.5, active_dims=(0,)), gk.MaternKernel(active_dims=(1,))
        other.raw_lengthscale = one.raw_lengthscale
        return one + other

    model = fitted(kernel=tied())
    model.save(tmp_path / "model")
    with pytest.raises(ModelFileError, match="kernel="):
        DecoupledGPRegressor.load(tmp_path / "model")
    model, loaded = saved_and_loaded(model, tmp_path / "model", kernel=tied())
    for each in (model, loaded):
        each.partial_fit(*rows(seed=1))
    assert_same_learner(model, loaded)


def test_unusual_transform_is_custom():
    kernel = gk.RBFKernel(lengthscale_constraint=Positive(torch.square, torch.sqrt))
    assert specs.describe(kernel)["type"] == "custom"


def test_kernel_is_not_asked_for_if_the_model_has_the_default(tmp_path):
    fitted().save(tmp_path / "model")
    with pytest.raises(ModelFileError, match="leave kernel= out"):
        DecoupledGPRegressor.load(tmp_path / "model", kernel=gk.RBFKernel())


def test_priors_are_not_stored_but_may_be_passed_again(tmp_path):
    kernel = gk.MaternKernel(lengthscale_prior=GammaPrior(3.0, 6.0))
    model, loaded = saved_and_loaded(fitted(kernel=kernel), tmp_path / "model")
    assert_same_predictions(model, loaded, rows()[0])
    assert not list(loaded.kernel_.named_priors())
    again = DecoupledGPRegressor.load(tmp_path / "model", kernel=kernel)
    assert len(list(again.kernel_.named_priors())) == 1
    assert_same_predictions(model, again, rows()[0])
