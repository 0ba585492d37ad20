"""Every system of the paper's tables learns something real, end to end, at sizes that take seconds."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.paper import systems
from benchmarks.paper.choice import Beginning
from benchmarks.paper.protocol import PROTOCOLS, RATES
from benchmarks.paper.systems import SYSTEMS
from decoupledgp import ExactGPRegressor
from decoupledgp.data import Split
from decoupledgp.kernels import se_ard

TINY = replace(
    PROTOCOLS["toy"], batch_size=128, mean_basis=256, iterations=30, trial=10, checkpoints=3
)


def split(n_outputs):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1000, 3))
    Y = np.column_stack([np.sin(X[:, k]) + X[:, 1] for k in range(n_outputs)])
    Y = (Y - Y.mean(0)) / Y.std(0) + 0.1 * rng.standard_normal(Y.shape)
    return Split(X[:900], Y[:900], X[900:], Y[900:])


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_end_to_end(name):
    system = SYSTEMS[name]
    n_outputs = 2 if system.joint else 1
    results = system.run(split(n_outputs), TINY, 0, 2.0 if system.timed else None)
    assert len(results) == n_outputs
    for result in results:
        assert 0 < result["nmse"] < 0.7
        assert result["seconds"] > 0
        assert ("coverage" in result) == (name not in ("boosting-timed", "boosting", "linear"))
    if name in ("svdgp", "svi", "ivsgpr"):
        (result,) = results
        assert result["curve"][-1]["iteration"] == result["iterations"] == 30
        assert result["broken"] == []
        assert set(result["rates"]) == {f"{r}, {d}" for r in RATES for d in ("inputs", "rows")}


@pytest.mark.parametrize("name", ["vsgpr", "gpr"])
@pytest.mark.parametrize("better", ["inputs", "rows"])
def test_batch_systems_begin_with_the_length_scales_of_the_better_objective(
    name, better, monkeypatch
):
    """The kernels are made to be told apart: one fits the data, the other is far too narrow."""
    scales, begun = {"inputs": 1e-3, "rows": 1e-3, better: 1.0}, []

    def kernel(distances, X):
        begun.append(distances)
        kernel = se_ard(X.shape[1])
        kernel.lengthscale = scales[distances]
        return kernel

    monkeypatch.setattr(systems, "first_kernel", kernel)
    (result,) = SYSTEMS[name].run(split(1), TINY, 0, None)
    assert result["distances"] == begun[-1] == better
    assert max(result["objectives"], key=result["objectives"].get) == better
    begun.clear()
    (result,) = SYSTEMS[name].run(split(1), replace(TINY, distances=("rows",)), 0, None)
    assert (begun, result["distances"], result["objectives"]) == (["rows"], "rows", {})


def test_a_batch_system_that_breaks_down_with_one_beginning_takes_the_other(monkeypatch):
    fit = ExactGPRegressor.fit

    def fragile(model, X, y):
        if float(model.kernel.lengthscale[0, 0].detach()) == 2.0:
            raise torch.linalg.LinAlgError("not positive definite")
        return fit(model, X, y)

    def kernel(distances, X):
        kernel = se_ard(X.shape[1])
        kernel.lengthscale = 2.0 if distances == "inputs" else 1.0
        return kernel

    monkeypatch.setattr(ExactGPRegressor, "fit", fragile)
    monkeypatch.setattr(systems, "first_kernel", kernel)
    (result,) = SYSTEMS["gpr"].run(split(1), TINY, 0, None)
    assert result["distances"] == "rows"
    assert result["objectives"]["inputs"] is None


def test_a_run_that_breaks_down_goes_on_with_smaller_steps(monkeypatch):
    make, rates = systems.online_model, []

    def fragile(name, p, seed, rate, kernel, *, max_iter, callbacks=()):
        model = make(name, p, seed, rate, kernel, max_iter=max_iter, callbacks=list(callbacks))
        if max_iter == TINY.iterations:
            rates.append(rate)
            if len(rates) == 1:
                monkeypatch.setattr(model, "fit", _break_down, raising=False)
        return model

    monkeypatch.setattr(systems, "online_model", fragile)
    monkeypatch.setattr(systems, "choose", lambda *_: (Beginning("rows", 0.1), {}))
    (result,) = SYSTEMS["svi"].run(split(1), TINY, 0, None)
    assert rates == [0.1, 0.01]
    assert (result["rate"], result["broken"], result["distances"]) == (0.01, [0.1], "rows")


def _break_down(X, y):
    raise torch.linalg.LinAlgError("not positive definite")
