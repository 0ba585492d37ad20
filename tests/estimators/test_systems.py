"""The other systems as estimators: against scikit-learn's exact GP, and on odd data."""

import gpytorch
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.utils.estimator_checks import check_estimator

from decoupledgp import (
    DecoupledGPRegressor,
    ExactGPRegressor,
    IncrementalGPRegressor,
    ModelFileError,
    SparseGPRegressor,
    SVGPRegressor,
)

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (80, 2))
NEW = RNG.uniform(-2, 2, (20, 2))
Y = np.sin(2 * X[:, 0]) + 0.1 * RNG.standard_normal(80)
BOTH = np.column_stack([Y, 100 * np.cos(X[:, 1])])

each = pytest.mark.parametrize(
    "kind", [ExactGPRegressor, SparseGPRegressor, SVGPRegressor, IncrementalGPRegressor]
)
online = pytest.mark.parametrize("kind", [SVGPRegressor, IncrementalGPRegressor])
batch = pytest.mark.parametrize("kind", [ExactGPRegressor, SparseGPRegressor])


@each
def test_check_estimator(kind):
    results = check_estimator(kind(max_iter=10), on_skip=None)
    assert {r["status"] for r in results} <= {"passed", "skipped"}
    assert not any(r["expected_to_fail"] for r in results)


def test_the_exact_gp_is_scikit_learns():
    """The same predictions from the same hyper-parameters; and ours are the better evidence."""
    model = ExactGPRegressor().fit(X, Y)
    scaled = (Y - Y.mean()) / Y.std()
    inputs = (X - X.mean(0)) / X.std(0)
    base = model.kernel_.base_kernel.lengthscale.detach().numpy().ravel()
    kernel = ConstantKernel(float(model.kernel_.outputscale), "fixed") * RBF(base, "fixed")
    noise = float(model.likelihood_.noise)
    peer = GaussianProcessRegressor(kernel, alpha=noise, optimizer=None).fit(inputs, scaled)
    mean, std = peer.predict((NEW - X.mean(0)) / X.std(0), return_std=True)
    got_mean, got_std = model.predict(NEW, return_std=True)
    assert_allclose(got_mean, mean * Y.std() + Y.mean(), rtol=1e-6, atol=1e-8)
    assert_allclose(got_std, np.sqrt(std**2 + noise) * Y.std(), rtol=1e-6)
    evidence = peer.log_marginal_likelihood_value_ - len(Y) * np.log(Y.std())
    assert_allclose(model.elbo(X, Y), evidence, rtol=1e-6)
    assert_allclose(model.history_[-1]["elbo"], evidence, rtol=1e-3)


def test_a_sparse_gp_with_all_rows_as_basis_is_the_exact_gp():
    exact = ExactGPRegressor().fit(X, Y)
    sparse = SparseGPRegressor(80, basis="points").fit(X, Y)
    assert sparse.elbo(X, Y) <= exact.elbo(X, Y) + 0.05
    assert_allclose(sparse.elbo(X, Y), exact.elbo(X, Y), atol=0.5)
    assert_allclose(sparse.predict(NEW), exact.predict(NEW), atol=0.02)


@pytest.mark.parametrize("basis", ["points", "multiscale"])
def test_a_small_basis_is_enough_for_a_smooth_function(basis):
    model = SparseGPRegressor(15, basis=basis, random_state=0).fit(X, Y)
    assert model.n_mean_basis_ == model.n_cov_basis_ == 15
    truth = np.sin(2 * NEW[:, 0])
    assert np.mean((model.predict(NEW) - truth) ** 2) < 0.02 * np.var(truth)
    bounds = [record["elbo"] for record in model.history_]
    assert bounds == sorted(bounds)
    assert_allclose(model.elbo(X, Y), bounds[-1], rtol=1e-4)


@batch
def test_solvers_agree(kind):
    first, second = (kind(solver=solver, random_state=0).fit(X, Y) for solver in ("cg", "lbfgs"))
    assert_allclose(first.elbo(X, Y), second.elbo(X, Y), atol=1.0)


@each
def test_several_outputs_have_scales_and_noise_of_their_own(kind):
    model = kind(max_iter=100, random_state=0).fit(X, BOTH)
    mean, std = model.predict(NEW, return_std=True)
    assert mean.shape == std.shape == (20, 2)
    assert_allclose(mean[:, 1], 100 * np.cos(NEW[:, 1]), atol=5)
    assert std[:, 0].mean() > 0.08
    assert model.sample_y(NEW, 3).shape == (20, 2, 3)
    assert np.isfinite(model.elbo(X, BOTH))


@each
def test_any_kernel(kind):
    kernel = gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=2)
    model = kind(kernel=kernel, max_iter=100, random_state=0).fit(X, Y)
    assert np.mean((model.predict(NEW) - np.sin(2 * NEW[:, 0])) ** 2) < 0.02
    assert isinstance(model.kernel_.base_kernel, gpytorch.kernels.MaternKernel)
    assert kernel.lengthscale.detach().numpy().ravel()[0] == pytest.approx(np.log(2))  # a copy


@each
@pytest.mark.parametrize("targets", [Y, BOTH])
def test_a_file_gives_the_model_back(kind, targets, tmp_path):
    model = kind(random_state=0, max_iter=5).fit(X, targets)
    model.save(tmp_path / "model.gp")
    loaded = kind.load(tmp_path / "model.gp")
    assert loaded.get_params() == model.get_params()
    for got, expected in zip(
        loaded.predict(NEW, return_std=True), model.predict(NEW, return_std=True), strict=True
    ):
        assert_array_equal(got, expected)
    assert loaded.history_ == model.history_
    assert loaded.elbo(X, targets) == model.elbo(X, targets)
    with pytest.raises(ModelFileError, match=f"it holds a {kind.__name__}"):
        DecoupledGPRegressor.load(tmp_path / "model.gp")


@each
def test_callbacks_see_a_model_that_predicts_and_may_stop_it(kind):
    seen = []

    def callback(model, record):
        seen.append((record["iteration"], model.predict(NEW).mean()))
        return len(seen) == 3

    model = kind(callbacks=[callback], random_state=0).fit(X, Y)
    assert [iteration for iteration, _ in seen] == [1, 2, 3]
    assert model.n_iter_ == 3
    assert_allclose(seen[-1][1], model.predict(NEW).mean(), atol=0.1)


@batch
def test_ctrl_c_leaves_the_best_model_so_far(kind):
    def interrupt(model, record):
        if record["iteration"] == 2:
            raise KeyboardInterrupt

    model = kind(callbacks=[interrupt], random_state=0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y)
    assert np.isfinite(model.predict(NEW)).all()
    assert model.elbo(X, Y) >= model.history_[0]["elbo"] - 1e-6


@batch
def test_too_many_rows_are_thinned_out_with_a_word(kind):
    with pytest.warns(UserWarning, match="learns from 30 random rows of 80"):
        model = kind(max_rows=30, max_iter=5, random_state=0).fit(X, Y)
    assert model.n_rows_ == 30
    with pytest.warns(UserWarning, match="random rows"):
        again = kind(max_rows=30, max_iter=5, random_state=0).fit(X, Y)
    assert_array_equal(model.predict(NEW), again.predict(NEW))


@each
@pytest.mark.parametrize(
    ("rows", "targets"),
    [
        (X[:1], Y[:1]),
        (X[:2], Y[:2]),
        (np.repeat(X[:5], 10, axis=0), np.repeat(Y[:5], 10)),
        (X, np.ones(80)),
        (1e9 * X + 1e12, 1e-9 * Y),
        (np.column_stack([X, np.ones(80)]), Y),
        (X, X[:, 0]),
    ],
    ids=["one", "two", "duplicates", "constant", "scaled", "constant column", "noise-free"],
)
def test_odd_tables(kind, rows, targets):
    model = kind(max_iter=20, random_state=0).fit(rows, targets)
    mean, std = model.predict(rows, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    assert np.abs(mean - targets).max() <= max(np.ptp(targets), 1e-9)


@batch
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("likelihood", gpytorch.likelihoods.StudentTLikelihood()),
        ("solver", "newton"),
        ("max_rows", 0),
        ("max_iter", 0),
        ("device", "nowhere"),
        ("preset", "other"),
        ("callbacks", [1]),
        ("kernel", "rbf"),
        ("random_state", "one"),
        ("verbose", "loud"),
    ],
)
def test_invalid_arguments_are_refused_by_name(kind, name, value):
    with pytest.raises((ValueError, TypeError), match=name):
        kind(**{name: value}).fit(X, Y)


def test_the_multiscale_basis_is_refused_for_other_kernels():
    with pytest.raises(ValueError, match="multiscale"):
        SparseGPRegressor(
            kernel=gpytorch.kernels.MaternKernel(ard_num_dims=2), basis="multiscale"
        ).fit(X, Y)


def test_the_papers_sizes():
    assert SparseGPRegressor(preset="paper")._size("n_basis") == 1024
    assert SparseGPRegressor(preset="paper")._size("max_rows") == 4096
    assert ExactGPRegressor(preset="paper")._size("max_rows") == 1024
    assert SparseGPRegressor(7, preset="paper")._size("n_basis") == 7
    assert SVGPRegressor(preset="paper", max_iter=1).fit(X, Y)._run.settings.n_mean_basis == 1024


@online
def test_the_papers_steps(kind):
    """With the preset natural gradients and mirror ascent take Adam's steps, γ_0 / (1 + 0.1 √t)."""
    settings = {"max_iter": 3, "learning_rate": 0.5, "random_state": 0}
    learner = kind(20, preset="paper", **settings).fit(X, Y)._run.online.learner
    assert_allclose([learner.rate(t) for t in (1, 100)], [0.5 / 1.1, 0.25])
    own = kind(20, preset="paper", natural_rate=0.3, **settings).fit(X, Y)._run.online.learner
    assert own.rate(100) == 0.3
    usual = kind(20, **settings).fit(X, Y)._run.online.learner
    assert usual.rate(100) == 0.1


@online
def test_online_systems_learn_online_as_from_a_table(kind):
    """Fed the minibatches of `fit`'s first pass, `partial_fit` ends at the same model."""
    settings = {"batch_size": 20, "basis_increment": 10, "random_state": 0}
    table = kind(30, max_iter=4, **settings).fit(X, Y)
    order = []
    kind(30, max_iter=4, callbacks=[lambda m, r: order.append(r["rows"])], **settings).fit(X, Y)
    assert order == [20, 40, 60, 80]
    stream = kind(30, **settings)
    for start in range(0, 80, 20):
        stream.partial_fit(X[start : start + 20], Y[start : start + 20])
    assert stream.n_iter_ == table.n_iter_ == 4
    assert stream.n_mean_basis_ == table.n_mean_basis_ == 30
    assert np.isfinite(stream.predict(NEW)).all()


@online
def test_online_systems_go_on_learning_after_loading(kind, tmp_path):
    model = kind(20, max_iter=20, random_state=0).fit(X, Y)
    model.save(tmp_path / "model.gp")
    loaded = kind.load(tmp_path / "model.gp")
    model.partial_fit(X, Y)
    loaded.partial_fit(X, Y)
    assert_array_equal(loaded.predict(NEW), model.predict(NEW))


@online
def test_online_systems_approach_the_sparse_gp(kind):
    model = kind(15, basis="points", max_iter=300, random_state=0).fit(X, Y)
    best = SparseGPRegressor(15, basis="points", random_state=0).fit(X, Y)
    assert model.elbo(X, Y) <= best.elbo(X, Y) + 5
    assert model.elbo(X, Y) > best.elbo(X, Y) - 25
    truth = np.sin(2 * NEW[:, 0])
    assert np.mean((model.predict(NEW) - truth) ** 2) < 0.03 * np.var(truth)


@online
@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_online_systems_survive_large_steps(kind, rate):
    model = kind(40, learning_rate=1.0, natural_rate=rate, max_iter=60, random_state=0)
    mean, std = model.fit(X, Y).predict(NEW, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()


@online
def test_online_systems_take_other_likelihoods(kind):
    outliers = Y.copy()
    outliers[::10] += 20
    robust = kind(
        30, likelihood=gpytorch.likelihoods.StudentTLikelihood(), max_iter=100, random_state=0
    ).fit(X, outliers)
    plain = kind(30, max_iter=100, random_state=0).fit(X, outliers)
    truth = np.sin(2 * NEW[:, 0])
    errors = [np.mean((model.predict(NEW) - truth) ** 2) for model in (robust, plain)]
    assert errors[0] < errors[1]


@online
@pytest.mark.parametrize(
    ("name", "value"),
    [("natural_rate", 0.0), ("natural_rate", 1.5), ("n_basis", 0), ("basis", "other")],
)
def test_online_systems_refuse_invalid_arguments_by_name(kind, name, value):
    with pytest.raises((ValueError, TypeError), match=name):
        kind(**{name: value}).fit(X, Y)


def test_nothing_to_learn_is_no_error():
    """A kernel and a likelihood that are fixed: the posterior is solved for all the same."""
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2))
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    likelihood.noise = 0.01
    for module in (kernel, likelihood):
        module.requires_grad_(False)
    model = ExactGPRegressor(kernel=kernel, likelihood=likelihood).fit(X, Y)
    assert model.n_iter_ == 0
    assert np.mean((model.predict(NEW) - np.sin(2 * NEW[:, 0])) ** 2) < 0.05
