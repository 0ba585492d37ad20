"""The estimator: what it learns, in which order, and what it records."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import gpytorch
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from decoupledgp import DecoupledGPRegressor
from decoupledgp.data import shuffled_batches
from decoupledgp.estimators.history import append_thinned
from decoupledgp.estimators.settings import resolve
from decoupledgp.kernels import median_distance, median_distances
from decoupledgp.online import OnlineLearner
from decoupledgp.posteriors import DecoupledPosterior

RNG = np.random.default_rng(0)
X = RNG.uniform(-3, 3, (300, 2))
F = np.sin(2 * X[:, 0]) * X[:, 1]
Y = F + 0.1 * RNG.standard_normal(300)
X_NEW = RNG.uniform(-3, 3, (200, 2))
F_NEW = np.sin(2 * X_NEW[:, 0]) * X_NEW[:, 1]


def small(**options):
    return DecoupledGPRegressor(
        **{"n_mean_basis": 60, "n_cov_basis": 20, "max_iter": 30, "random_state": 0, **options}
    )


def test_it_learns():
    model = small(n_mean_basis=300, n_cov_basis=100, max_iter=300).fit(X, Y)
    mean, std = model.predict(X_NEW, return_std=True)
    y_new = F_NEW + 0.1 * np.random.default_rng(1).standard_normal(200)
    assert np.mean((mean - F_NEW) ** 2) / F_NEW.var() < 0.05
    assert 0.9 < np.mean(np.abs(mean - y_new) < 1.96 * std) <= 1


@pytest.mark.parametrize("partially_shared", [False, True])
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("batch_size", [20, 50])
def test_fit_equals_partial_fit_on_the_same_minibatches(batch_size, outputs, partially_shared):
    """Bit for bit over the first pass, also through the warm-up (batches of fewer than 32 rows)."""
    targets = np.stack([Y * (k + 1) for k in range(outputs)], 1)
    options = {
        "batch_size": batch_size,
        "basis_increment": 10,
        "kl_batch_size": 16,
        "partially_shared": partially_shared,
    }
    whole = small(max_iter=300 // batch_size, **options).fit(X, targets)
    seed = np.random.RandomState(0).randint(np.iinfo(np.int32).max)
    order = np.random.default_rng(seed).spawn(2)[1]
    batches = shuffled_batches(300, batch_size, order)
    online = small(**options)
    for _ in range(300 // batch_size):
        index = next(batches)
        online.partial_fit(X[index], targets[index])
    for got, expected in zip(
        online.predict(X_NEW, return_std=True), whole.predict(X_NEW, return_std=True), strict=True
    ):
        assert_array_equal(got, expected)
    assert online.n_rows_ == whole.n_rows_ == 300
    assert [h["elbo"] for h in online.history_] == [h["elbo"] for h in whole.history_]


def test_the_same_random_state_repeats_exactly_and_another_does_not():
    one, two, other = (small(random_state=k).fit(X, Y).predict(X_NEW) for k in (0, 0, 1))
    assert_array_equal(one, two)
    assert not np.array_equal(one, other)


def test_torchs_global_random_state_is_neither_used_nor_touched():
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    model = small().fit(X, Y)
    model.sample_y(X[:5])
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(1)
    assert_array_equal(small().fit(X, Y).predict(X_NEW), model.predict(X_NEW))


def test_outputs_are_learnt_as_if_alone_but_for_the_shared_bases():
    """With hyper-parameters and bases held still, P outputs are P single models."""
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2))
    kernel.base_kernel.lengthscale = 0.6
    for parameter in kernel.parameters():
        parameter.requires_grad_(False)
    options = {"kernel": kernel, "basis": "points", "max_iter": 40, "dtype": "float64"}
    targets = np.stack([Y, 3 * X[:, 0] + 7], 1)

    def freeze(model, record):
        posterior = model.posterior_
        for parameter in (*posterior.mean_basis.parameters(), *posterior.cov_basis.parameters()):
            parameter.requires_grad_(False)

    def fitted(y):
        # The first steps add all functions; the rest move coefficients only.
        return small(**options, basis_increment=300, callbacks=[freeze]).fit(X, y)

    together = fitted(targets).predict(X_NEW, return_std=True)
    for p in range(2):
        alone = fitted(targets[:, p]).predict(X_NEW, return_std=True)
        for got, expected in zip(together, alone, strict=True):
            assert np.corrcoef(got[:, p], expected)[0, 1] > 0.99


def test_shapes_follow_y():
    for y, shape in ((Y, (7,)), (Y[:, None], (7, 1)), (np.stack([Y, Y], 1), (7, 2))):
        model = small(max_iter=3).fit(X, y)
        mean, std = model.predict(X[:7], return_std=True)
        assert mean.shape == std.shape == shape
        assert model.predict(X[:7], return_cov=True)[1].shape == (7, 7, *shape[1:])
        assert model.sample_y(X[:7], 4).shape == (7, *shape[1:], 4)


def test_covariance_and_samples_agree_with_std():
    model = small().fit(X, np.stack([Y, 5 * Y], 1))
    mean, std = model.predict(X[:6], return_std=True)
    mean_too, cov = model.predict(X[:6], return_cov=True)
    assert_allclose(mean_too, mean, rtol=1e-12)
    assert_allclose(np.sqrt(np.einsum("iip->ip", cov)), std, rtol=1e-9)
    draws = model.sample_y(X[:6], 20_000)
    assert_allclose(draws.mean(-1), mean, atol=0.05 * std.max())
    for p in range(2):
        assert_allclose(np.cov(draws[:, p]), cov[..., p], atol=0.05 * cov[..., p].max())


def test_history_records_every_step():
    model = small(max_iter=25).fit(X, Y)
    assert [h["iteration"] for h in model.history_] == list(range(1, 26))
    for key in ("seconds", "rows", "elbo", "nmse"):
        assert all(np.isfinite(h[key]) for h in model.history_)
    seconds = [h["seconds"] for h in model.history_]
    assert seconds == sorted(seconds)
    assert model.n_iter_ == 25
    assert model.history_[-1]["elbo"] > model.history_[0]["elbo"]


def test_an_endless_stream_has_a_bounded_history():
    history = []
    for k in range(1, 40_000):
        append_thinned(history, {"iteration": k})
        assert len(history) <= 4096
    steps = np.diff([h["iteration"] for h in history])
    assert steps.min() == steps.max() == 16
    assert history[0]["iteration"] == 1
    assert history[-1]["iteration"] > 39_000


def test_callbacks_see_the_model_and_stop_it():
    seen = []

    def stop_at_five(model, record):
        seen.append((record["iteration"], model.predict(X[:1]).shape))
        return record["iteration"] == 5

    model = small(callbacks=[stop_at_five]).fit(X, Y)
    assert model.n_iter_ == 5
    assert seen == [(k, (1,)) for k in range(1, 6)]


def test_ctrl_c_waits_for_the_step_and_loses_nothing(monkeypatch):
    """A real SIGINT in the middle of a step: the step ends, then fit is interrupted, whole."""
    add = DecoupledPosterior.add

    def interrupted_add(self, *rows):
        add(self, *rows)
        if self.n_mean > 20:
            os.kill(os.getpid(), signal.SIGINT)

    model = small(basis_increment=10)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's & ignores it
    try:
        with monkeypatch.context() as patch:
            patch.setattr(DecoupledPosterior, "add", interrupted_add)
            with pytest.raises(KeyboardInterrupt):
                model.fit(X, Y)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert model.n_iter_ == len(model.history_) == 3
    assert model.n_mean_basis_ == 30
    assert np.isfinite(model.predict(X_NEW)).all()
    assert model.partial_fit(X, Y).n_iter_ == 4


def test_fit_works_in_another_thread():
    with ThreadPoolExecutor(2) as pool:
        models = list(pool.map(lambda seed: small(random_state=seed, max_iter=5).fit(X, Y), (0, 0)))
    assert_array_equal(models[0].predict(X_NEW), models[1].predict(X_NEW))


def test_numpy_numbers_are_numbers():
    model = small(n_mean_basis=np.int64(40), learning_rate=np.float32(0.1), max_iter=np.int32(3))
    assert model.fit(X, Y).n_mean_basis_ == 40


def test_held_out_bound_is_the_papers(monkeypatch):
    """(N/n) Σ log-likelihood - KL in y's own units: scaling y by s moves it by -N log s."""
    model = small().fit(X, Y)
    scaled = small().fit(X, 1000 * Y)
    assert_allclose(
        scaled.elbo(X_NEW, 1000 * F_NEW), model.elbo(X_NEW, F_NEW) - 300 * np.log(1000), rtol=1e-4
    )
    twice = np.concatenate([X_NEW, X_NEW]), np.concatenate([F_NEW, F_NEW])
    assert_allclose(model.elbo(*twice), model.elbo(X_NEW, F_NEW), rtol=1e-5)
    # On the training rows it is the bound that learning climbs.
    assert_allclose(model.elbo(X, Y), model.history_[-1]["elbo"], rtol=0.1)


def test_a_row_becomes_a_function_at_most_once():
    model = small(n_mean_basis=1000, learning_rate=1e-12, max_iter=20).fit(X, Y)
    locations = model.posterior_.mean_basis.locations.detach()
    assert model.n_mean_basis_ == len(torch.unique(locations.round(decimals=5), dim=0)) == 300


def test_a_stream_of_single_rows():
    model = small(n_mean_basis=200, n_cov_basis=40)
    for k in range(200):
        model.partial_fit(X[k : k + 1], Y[k : k + 1])
        assert np.isfinite(model.predict(X_NEW[:2], return_std=True)).all()
    assert model.n_rows_ == 200
    assert model.score(X_NEW, F_NEW) > 0


def test_no_rows_are_kept():
    model = small().partial_fit(X, Y)
    kept = model._run.__dict__
    assert kept["_first_rows"] == []
    assert kept["_seen"] is None
    assert kept["_lent"] is None


@pytest.mark.parametrize("name", ["StudentTLikelihood", "LaplaceLikelihood"])
def test_heavy_tails(name):
    """An outlier in twenty does not spoil the fit."""
    bad = Y.copy()
    bad[::20] += 30
    likelihood = getattr(gpytorch.likelihoods, name)()
    options = {"n_mean_basis": 200, "n_cov_basis": 60, "max_iter": 200}
    robust = small(likelihood=likelihood, **options).fit(X, bad)
    plain = small(**options).fit(X, bad)
    assert robust.score(X_NEW, F_NEW) > max(0.7, plain.score(X_NEW, F_NEW))
    mean, std = robust.predict(X_NEW, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()


def test_counts_are_left_in_their_units():
    counts = np.random.default_rng(0).poisson(np.exp(1 + np.sin(2 * X[:, 0])))
    model = small(likelihood=gpytorch.likelihoods.PoissonLikelihood(), max_iter=100).fit(X, counts)
    mean, std = model.predict(X_NEW, return_std=True)
    assert np.corrcoef(mean, np.exp(1 + np.sin(2 * X_NEW[:, 0])))[0, 1] > 0.9
    assert (std > 0).all()
    draws = model.sample_y(X_NEW[:5], 10)
    assert_array_equal(draws, draws.round())
    with pytest.raises(ValueError, match="return_std"):
        model.predict(X_NEW, return_cov=True)


@pytest.mark.parametrize(
    "kernel",
    [
        gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=2),
        gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()),
        gpytorch.kernels.RBFKernel(active_dims=(0,)) + gpytorch.kernels.LinearKernel(),
        gpytorch.kernels.PeriodicKernel() * gpytorch.kernels.RBFKernel(),
    ],
    ids=lambda kernel: type(kernel).__name__,
)
def test_any_kernel(kernel):
    before = [p.detach().clone() for p in kernel.parameters()]
    model = small(kernel=kernel, max_iter=60).fit(X, Y)
    mean, std = model.predict(X_NEW, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert model.history_[-1]["elbo"] > model.history_[0]["elbo"]
    assert all(torch.equal(a, b) for a, b in zip(before, kernel.parameters(), strict=True))


def test_no_covariance_basis():
    model = small(n_cov_basis=0).fit(X, Y)
    _, std = model.predict(X_NEW, return_std=True)
    assert model.n_cov_basis_ == 0
    assert_allclose(std, std[0])


def test_float64_and_float32_agree():
    one, two = (small(dtype=dtype).fit(X, Y).predict(X_NEW) for dtype in ("float32", "float64"))
    assert_allclose(one, two, atol=0.02 * np.std(Y))


def test_paper_preset():
    settings = resolve(DecoupledGPRegressor(preset="paper", max_iter=7).get_params())
    assert settings.n_mean_basis == 128**2
    assert settings.n_cov_basis == 128
    assert settings.batch_size == settings.kl_batch_size == 1024
    assert settings.basis_increment == 128
    assert settings.max_iter == 7
    assert resolve(DecoupledGPRegressor(preset="paper").get_params()).max_iter == 2000
    assert settings.basis == "multiscale"
    assert settings.natural_rate is None
    given = DecoupledGPRegressor(preset="paper", natural_rate=np.float32(0.25)).get_params()
    assert type(resolve(given).natural_rate) is float


@pytest.mark.parametrize("preset", [None, "paper"])
def test_the_papers_length_scales_begin_at_the_distances_in_each_feature(preset):
    model = small(preset=preset, max_iter=1, learning_rate=1e-9).fit(X, Y)
    rows = torch.as_tensor((X - X.mean(0)) / X.std(0))
    found = model.kernel_.base_kernel.lengthscale.detach()[0]
    expected = median_distances(rows) if preset else np.full(X.shape[1], median_distance(rows))
    assert_allclose(found, expected, rtol=0.2)  # a minibatch of the rows
    assert (np.ptp(found.numpy()) > 1e-4) == (preset is not None)


@pytest.mark.parametrize(("preset", "expected"), [(None, [40, 80, 120]), ("paper", [120] * 3)])
def test_the_papers_bound_has_the_tables_rows_from_the_first_step(preset, expected, monkeypatch):
    """By itself N is the rows seen so far."""
    observe, totals = OnlineLearner.observe, []

    def spy(self, *rows, n_total, **options):
        totals.append(n_total)
        return observe(self, *rows, n_total=n_total, **options)

    monkeypatch.setattr(OnlineLearner, "observe", spy)
    model = small(preset=preset, max_iter=3, batch_size=40).fit(X[:120], Y[:120])
    assert totals == expected
    model.partial_fit(X[:7], Y[:7])
    assert totals[3:] == [127]


def test_the_papers_n_is_kept_by_all_that_use_it(tmp_path):
    """Stopped after a third of the table: bound, history, files and streams go on with the table's N."""
    large = 1000 * Y[:120]
    model = small(preset="paper", max_iter=1, batch_size=40).fit(X[:120], large)
    plain = small(preset="paper", max_iter=1, batch_size=40).fit(X[:120], Y[:120])
    assert model.n_rows_ == 40
    volume = 120 * np.log(1000)
    assert_allclose(model.history_[0]["elbo"], plain.history_[0]["elbo"] - volume, rtol=1e-4)
    assert_allclose(model.elbo(X, 1000 * Y), plain.elbo(X, Y) - volume, rtol=1e-4)
    model.save(tmp_path / "model")
    loaded = DecoupledGPRegressor.load(tmp_path / "model")
    assert loaded._run.n_total == 120
    assert loaded.partial_fit(X[:7], large[:7])._run.n_total == 127


def test_progress_bar_goes_to_standard_error(capfd):
    small(max_iter=3, verbose=1).fit(X, Y)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "3/3" in captured.err
    small(max_iter=3).fit(X, Y)
    assert capfd.readouterr().err == ""
