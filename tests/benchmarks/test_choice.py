"""What a run begins with is chosen by the bound on training rows; and what is measured is what it says."""

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist

from benchmarks.paper.choice import Beginning, best, choose, first_kernel
from benchmarks.paper.evaluate import Curve, held_out_bound, scores
from benchmarks.paper.protocol import PROTOCOLS, RATES
from benchmarks.paper.systems import online_model
from decoupledgp import ExactGPRegressor, SVGPRegressor
from decoupledgp.data import make_sinc
from decoupledgp.learners.gradient import BoundNotFiniteError

SINC = make_sinc(200)


def beginnings(*rates):
    return [Beginning("rows", rate) for rate in rates]


def test_the_best_bound_wins_and_numbers_beat_none():
    large, middle, small = beginnings(*RATES)
    assert best({large: -3.0, middle: -1.0, small: -2.0}) == middle
    assert best({large: math.nan, middle: -math.inf, small: -9.0}) == small
    assert best({large: -3.0, small: -3.0}) == small
    assert best({large: -3.0, Beginning("inputs", 0.1): -2.0}).distances == "inputs"
    with pytest.raises(ValueError, match=r"no beginning of 0\.1, rows gives"):
        best({large: math.nan})


def test_a_choice_between_real_runs_is_the_one_with_the_best_bound():
    def make(begin):
        return SVGPRegressor(
            10, learning_rate=begin.rate, max_iter=8, batch_size=64, random_state=0
        )

    begin, reached = choose(make, SINC.X_train, SINC.y_train, beginnings(*RATES), seed=0)
    assert set(reached) == {f"{rate:g}, rows" for rate in RATES}
    assert reached[str(begin)] == max(reached.values())


def test_of_one_there_is_nothing_to_choose():
    (only,) = beginnings(0.1)
    assert choose(None, SINC.X_train, SINC.y_train, [only], seed=0) == (only, {})


@pytest.mark.parametrize("error", [torch.linalg.LinAlgError, BoundNotFiniteError])
def test_a_run_that_breaks_down_is_not_chosen(error):
    class Broken:
        def fit(self, X, y):
            raise error("not positive definite, or not finite")

    def make(begin):
        return Broken() if begin.rate == 0.1 else SVGPRegressor(5, max_iter=2)

    begin, reached = choose(make, SINC.X_train, SINC.y_train, beginnings(0.1, 0.01), seed=0)
    assert begin.rate == 0.01
    assert reached["0.1, rows"] is None


def test_the_two_readings_of_the_first_length_scales():
    X = np.random.default_rng(0).standard_t(3, (300, 4))
    X = (X - X.mean(0)) / X.std(0)
    rows = np.median(pdist(X))
    inputs = [np.median(pdist(X[:, [d]])) for d in range(4)]
    for distances, expected in (("rows", np.full(4, rows)), ("inputs", inputs)):
        kernel = first_kernel(distances, X)
        np.testing.assert_allclose(kernel.lengthscale.detach()[0], expected, rtol=1e-3)
        model = online_model("svi", PROTOCOLS["toy"], 0, 1e-9, kernel, max_iter=1).fit(X, X[:, 0])
        found = model.kernel_.base_kernel.lengthscale.detach()[0]
        np.testing.assert_allclose(found, expected, rtol=1e-3)


@pytest.mark.parametrize("name", ["svdgp", "svi", "ivsgpr"])
def test_the_bound_is_the_estimators_where_all_rows_were_seen(name):
    model = online_model(name, PROTOCOLS["toy"], 0, 0.01, max_iter=3)
    model.set_params(batch_size=200).fit(SINC.X_train, SINC.y_train)
    bound = held_out_bound(model, SINC.X_test, SINC.y_test, len(SINC.X_train))
    assert model.n_rows_ == 200
    np.testing.assert_allclose(bound, model.elbo(SINC.X_test, SINC.y_test), rtol=1e-5)


def test_bounds_of_several_outputs_are_those_of_each():
    Y = np.column_stack([SINC.y_train, 3 * SINC.X_train[:, 0] + SINC.y_train])
    model = ExactGPRegressor(max_iter=3).fit(SINC.X_train, Y)
    bounds = held_out_bound(model, SINC.X_train, Y, len(Y))
    assert bounds.shape == (2,)
    np.testing.assert_allclose(bounds.sum(), model.elbo(SINC.X_train, Y))
    per_output = scores(model, SINC.X_train, Y, len(Y))
    np.testing.assert_allclose([one["bound"] for one in per_output], bounds)


def test_a_curve_is_taken_at_its_marks_and_its_own_time_does_not_count():
    curve = Curve(SINC.X_test, SINC.y_test, 200, [1, 3])
    SVGPRegressor(5, max_iter=4, random_state=0, callbacks=[curve]).fit(SINC.X_train, SINC.y_train)
    assert [point["iteration"] for point in curve.points] == [1, 3]
    assert curve.points[0]["seconds"] < curve.points[1]["seconds"]
    assert curve._spent > 0


def test_marks_end_with_the_run():
    marks = PROTOCOLS["paper"].marks(2000)
    assert marks[0] == 10
    assert marks[-1] == 2000
    assert 15 <= len(marks) <= 20
    assert PROTOCOLS["paper"].marks(5) == [5]
