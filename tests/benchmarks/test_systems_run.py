"""Every system of the paper's tables learns something real, end to end, at sizes that take seconds."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from benchmarks.paper import systems
from benchmarks.paper.protocol import PROTOCOLS
from benchmarks.paper.systems import SYSTEMS
from decoupledgp import ExactGPRegressor, SparseGPRegressor
from decoupledgp.data import Split
from decoupledgp.kernels import median_distance

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
        assert ("coverage" in result) == (name not in ("boosting", "linear"))
    if name in ("svdgp", "svi", "ivsgpr"):
        (result,) = results
        assert result["curve"][-1]["iteration"] == result["iterations"] == 30
        assert result["broken"] == []
        assert set(result["rates"]) == {"0.1", "0.01", "0.001"}


def test_first_length_scales_of_the_other_reading():
    X = split(1).X_train
    assert systems.first_kernel(TINY, X) is None  # the preset's own
    kernel = systems.first_kernel(replace(TINY, feature_scales=False), X)
    expected = median_distance(torch.tensor(X[:128]))
    assert_allclose(kernel.lengthscale.detach(), np.full((1, 3), expected), rtol=1e-6)
    model = systems.online_model("svi", TINY, 0, 1e-9, kernel, max_iter=1).fit(X, X[:, 0])
    assert_allclose(model.kernel_.base_kernel.lengthscale.detach()[0], expected, rtol=1e-6)


@pytest.mark.parametrize(("feature_scales", "preset"), [(True, "paper"), (False, None)])
@pytest.mark.parametrize("name", ["vsgpr", "gpr"])
def test_batch_systems_begin_by_the_same_reading(name, feature_scales, preset, monkeypatch):
    made, p = [], replace(TINY, feature_scales=feature_scales, batch_iterations=1)
    for kind in (ExactGPRegressor, SparseGPRegressor):
        monkeypatch.setattr(kind, "fit", lambda model, X, y: made.append(model))
    monkeypatch.setattr(systems, "_scored", lambda *_: [])
    SYSTEMS[name].run(split(1), p, 0, None)
    assert [model.preset for model in made] == [preset]


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
    monkeypatch.setattr(systems, "choose_rate", lambda *_: (0.1, {}))
    (result,) = SYSTEMS["svi"].run(split(1), TINY, 0, None)
    assert rates == [0.1, 0.01]
    assert (result["rate"], result["broken"]) == (0.01, [0.1])


def _break_down(X, y):
    raise torch.linalg.LinAlgError("not positive definite")
