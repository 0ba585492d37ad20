"""Kernel and noise from neighbourhoods."""

import numpy as np
import pytest
import torch

from decoupledgp.kernels import radial_kernel, scaled_kernel, se_ard, smoothness
from decoupledgp.likelihoods import gaussian_likelihood
from decoupledgp.solvers import hyperparameters
from decoupledgp.solvers.hyperparameters import _Climber, _End, learn_hyperparameters
from decoupledgp.solvers.neighbourhoods import coordinates, neighbourhoods
from decoupledgp.solvers.rows import Rows


def learnt(x, y, prepare=None, seed=0):
    x, y = torch.tensor(x), torch.tensor(y.reshape(len(x), -1))
    kernel = scaled_kernel(se_ard(x.shape[1]).double(), y.shape[1]).double()
    likelihood = gaussian_likelihood(y.shape[1]).double()
    if prepare is not None:
        prepare(kernel, likelihood)
    learn_hyperparameters(kernel, likelihood, Rows.plain(x, y), rng=np.random.default_rng(seed))
    scales = kernel.base_kernel.lengthscale.detach().numpy().ravel()
    return kernel, likelihood, scales


def draw(n=700, scales=(0.5, 2.0), noise=0.1, seed=0):
    """Rows of a draw from the prior itself."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, (n, len(scales)))
    z = x / np.array(scales)
    K = np.exp(-0.5 * ((z[:, None] - z) ** 2).sum(-1))
    f = np.linalg.cholesky(K + 1e-8 * np.eye(n)) @ rng.standard_normal(n)
    return x, f + noise * rng.standard_normal(n)


def test_the_prior_that_made_the_rows_is_found():
    kernel, likelihood, scales = learnt(*draw())
    assert np.all(np.abs(np.log(scales / [0.5, 2.0])) < 0.4)
    assert abs(np.log(likelihood.noise.item() / 0.01)) < 0.4
    assert 0.2 < kernel.outputscale.item() < 5


def test_short_structure_that_random_rows_cannot_see_is_found():
    """20,000 rows, waves of length 0.03 on [0, 10]: 256 random rows are 0.04 apart."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 10, (20000, 1))
    y = np.sin(2 * np.pi * x / 0.03)[:, 0] + 0.1 * rng.standard_normal(20000)
    _, likelihood, scales = learnt((x - 5) / 2.9, y)
    assert scales[0] < 0.01
    assert likelihood.noise.item() < 0.05


def test_an_input_with_fast_changes_among_slow_ones_is_found():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1.7, 1.7, (5000, 3))
    y = np.sin(40 * x[:, 2]) + 0.3 * x[:, 0] + 0.1 * rng.standard_normal(5000)
    _, _, scales = learnt(x, y)
    assert scales[2] < 0.1 < 0.5 < scales[:2].min()


@pytest.mark.parametrize("smooth", [True, False])
def test_the_smoothness_is_that_of_the_function(smooth):
    """A draw from the squared exponential, and one from the Matérn kernel of order 1/2."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (900, 1))
    r = np.abs(x - x.T) / 0.5
    K = np.exp(-0.5 * r**2) if smooth else np.exp(-r)
    y = np.linalg.cholesky(K + 1e-8 * np.eye(900)) @ rng.standard_normal((900, 1))
    y = y + 0.05 * rng.standard_normal(y.shape)
    kernel = scaled_kernel(se_ard(1).double(), 1).double()
    likelihood = gaussian_likelihood(1).double()
    rows = Rows.plain(torch.tensor(x), torch.tensor(y))
    for few in (rows.take(slice(99)), rows):
        learn_hyperparameters(
            kernel, likelihood, few, rng=np.random.default_rng(0), choose_smoothness=True
        )
        if len(few) < 100:
            assert smoothness(kernel.base_kernel) == np.inf  # too few to tell
    scale = kernel.base_kernel.lengthscale
    assert smoothness(kernel.base_kernel) == (np.inf if smooth else 0.5)
    if smooth:
        assert 0.25 < scale.item() < 1
    else:  # of a rough kernel on an interval, only ρ² / s can be learnt
        assert 1 < kernel.outputscale.item() / scale.item() < 4
    assert scale.dtype == torch.float64


def test_the_smoothness_stays_when_learning_goes_on(monkeypatch):
    """From few rows it is chosen again: these are of a smooth function, whatever the start."""
    x, y = (torch.tensor(part) for part in draw(300))
    options = {"rng": np.random.default_rng(0), "choose_smoothness": True, "again": True}
    for settled, expected in ((4096, np.inf), (300, 1.5)):
        monkeypatch.setattr(hyperparameters, "SETTLED_ROWS", settled)
        kernel = scaled_kernel(radial_kernel(2, 1.5).double(), 1).double()
        rows, likelihood = Rows.plain(x, y[:, None]), gaussian_likelihood(1).double()
        learn_hyperparameters(kernel, likelihood, rows, **options)
        assert smoothness(kernel.base_kernel) == expected


def test_a_faint_function_under_much_noise_is_found():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1.7, 1.7, (4000, 2))
    _, likelihood, scales = learnt(x, np.sin(3 * x[:, 0]) * 0.5 + rng.standard_normal(4000))
    assert 0.1 < scales[0] < 3
    assert 0.8 < likelihood.noise.item() < 1.2


def test_inputs_that_do_not_matter_get_long_scales():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((800, 3))
    _, _, scales = learnt(x, np.sin(2 * x[:, 0]))
    assert scales[1:].min() > 3 * scales[0]


def test_what_is_fixed_stays_and_what_is_given_is_where_it_begins():
    def fix(kernel, likelihood):
        kernel.base_kernel.lengthscale = torch.tensor([[0.7, 0.9]], dtype=torch.float64)
        kernel.base_kernel.raw_lengthscale.requires_grad_(False)
        likelihood.noise = torch.tensor([[0.3]], dtype=torch.float64)
        likelihood.raw_noise.requires_grad_(False)

    kernel, likelihood, scales = learnt(*draw(300), prepare=fix)
    assert np.allclose(scales, [0.7, 0.9])
    assert np.isclose(likelihood.noise.item(), 0.3)
    assert kernel.outputscale.item() != 1


def test_noise_that_is_known_is_not_learnt_again():
    """Half of the rows have a known noise of 0.5 more; without that knowledge it is averaged in."""
    x, y = draw(noise=0.1)
    known = np.where(np.arange(len(x)) % 2, 0.5, 0.0)[:, None]
    y = y[:, None] + np.sqrt(known) * np.random.default_rng(1).standard_normal(known.shape)
    x, y, known = (torch.tensor(part) for part in (x, y, known))
    noise = []
    for rows in (Rows(x, y, torch.ones(len(x)).double(), known), Rows.plain(x, y)):
        kernel = scaled_kernel(se_ard(2).double(), 1).double()
        likelihood = gaussian_likelihood(1).double()
        learn_hyperparameters(kernel, likelihood, rows, rng=np.random.default_rng(0))
        noise.append(likelihood.noise.item())
    assert noise[0] < 0.02 < 0.1 < noise[1]


def test_inputs_in_the_units_of_the_greater_evidence_are_chosen():
    rng = np.random.default_rng(0)
    even = rng.uniform(-1.7, 1.7, (1500, 1))
    y = torch.tensor(np.sin(6 * even) + 0.1 * rng.standard_normal(even.shape))
    skewed = np.exp(3 * even)
    plain, other = (Rows.plain(torch.tensor(x / x.std()), y) for x in (even, skewed))
    for rows, others, expected in ((plain, [other], 0), (other, [plain], 1), (plain, [], 0)):
        kernel = scaled_kernel(se_ard(1).double(), 1).double()
        likelihood = gaussian_likelihood(1).double()
        generator = np.random.default_rng(0)
        chosen = learn_hyperparameters(kernel, likelihood, rows, rng=generator, others=others)
        assert chosen == expected
        assert likelihood.noise.item() < 0.03


@pytest.mark.parametrize(
    ("ahead", "error", "sound"),
    [
        (0.01, 0.5, False),  # within the margin
        (0.03, 1.0, False),  # a small lead has to be confirmed
        (0.03, 0.997, True),
        (0.1, 1.004, True),  # a larger one may be contradicted a little
        (0.1, 1.006, False),
        (9.0, 1.009, True),
        (9.0, 1.011, False),  # but not more than a hundredth
    ],
)
def test_short_scales_are_taken_if_evidence_and_error_allow(ahead, error, sound):
    climber = object.__new__(_Climber)
    smooth, short = _End(-1.0, [], 1.0), _End(-1.0 + ahead, [], error)
    rows = Rows.plain(torch.zeros(1, 1), torch.zeros(1, 1))
    assert climber._sound(rows, smooth, short, 0.02) is (short if sound else smooth)


def test_neighbourhoods_are_of_neighbours_at_several_densities():
    places = torch.rand(8000, 2, generator=torch.Generator().manual_seed(0)).double()
    groups = neighbourhoods(places, np.random.default_rng(0), size=100, count=10)
    assert all(len(set(group)) == 100 for group in groups)
    spread = [places[torch.from_numpy(group)].var(0).sum().item() for group in groups]
    assert min(spread) < 0.1 * max(spread)
    assert max(spread) > 0.8 * places.var(0).sum().item()
    (few,) = neighbourhoods(places[:50], np.random.default_rng(0), count=10)
    assert list(few) == list(range(50))


def test_neighbourhoods_of_one_value_are_avoided():
    """A target with a floor for three rows in ten; where all rows are alike there is nothing to avoid."""
    places = torch.rand(8000, 2, generator=torch.Generator().manual_seed(0)).double()
    y = places[:, :1].clamp_min(0.3)

    def most(**options):
        groups = neighbourhoods(places, np.random.default_rng(0), size=100, count=40, **options)
        return max(float((y[torch.from_numpy(group)] == 0.3).double().mean()) for group in groups)

    assert most() == 1
    assert most(y=y) <= 0.65
    assert most(y=torch.cat([places[:, 1:], y], 1)) <= 0.65
    assert most(y=torch.cat([torch.ones_like(y), y], 1)) <= 0.65
    assert most(y=torch.ones_like(y)) == 1


def test_evidence_is_of_neighbourhoods_that_know_the_targets(monkeypatch):
    x, y = draw(1200)
    given = []

    def spied(*places, y, **options):
        given.append(y)
        return neighbourhoods(*places, y=y, **options)

    monkeypatch.setattr(hyperparameters, "neighbourhoods", spied)
    learnt(x, y)
    assert given
    assert all(np.array_equal(one[:, 0], y) for one in given)


@pytest.mark.parametrize("likelihood", [None, "frozen"])
def test_all_neighbourhoods_will_do_where_no_noise_is_learnt(monkeypatch, likelihood):
    x, y = draw(1200)
    given = []

    def spied(*places, y, **options):
        given.append(y)
        return neighbourhoods(*places, y=y, **options)

    monkeypatch.setattr(hyperparameters, "neighbourhoods", spied)
    kernel = scaled_kernel(se_ard(x.shape[1]).double(), 1).double()
    if likelihood == "frozen":
        likelihood = gaussian_likelihood(1).double().requires_grad_(False)
    rows = Rows.plain(torch.from_numpy(x), torch.from_numpy(y)[:, None])
    rows.known = torch.full_like(rows.y, 0.1)
    learn_hyperparameters(kernel, likelihood, rows, rng=np.random.default_rng(0))
    assert given
    assert all(one is None for one in given)


def test_coordinates_are_in_length_scales():
    kernel = scaled_kernel(se_ard(2).double(), 1).double()
    kernel.base_kernel.lengthscale = torch.tensor([[2.0, 4.0]], dtype=torch.float64)
    x = torch.tensor([[2.0, 4.0]], dtype=torch.float64)
    assert torch.allclose(coordinates(kernel, x), torch.ones(1, 2).double())
