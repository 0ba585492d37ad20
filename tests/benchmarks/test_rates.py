"""γ_0 is chosen by the bound on training rows; and what is measured is what it says."""

import math

import numpy as np
import pytest
import torch

from benchmarks.paper.evaluate import Curve, held_out_bound, scores
from benchmarks.paper.protocol import PROTOCOLS, RATES
from benchmarks.paper.rates import best_rate, choose_rate
from benchmarks.paper.systems import online_model
from decoupledgp import ExactGPRegressor, SVGPRegressor
from decoupledgp.data import make_sinc
from decoupledgp.learners.gradient import BoundNotFiniteError

SINC = make_sinc(200)


def test_the_best_bound_wins_and_numbers_beat_none():
    assert best_rate({0.1: -3.0, 0.01: -1.0, 0.001: -2.0}) == 0.01
    assert best_rate({0.1: math.nan, 0.01: -math.inf, 0.001: -9.0}) == 0.001
    with pytest.raises(ValueError, match="no step size"):
        best_rate({0.1: math.nan})


def test_a_choice_between_real_runs_is_the_one_with_the_best_bound():
    def make(rate):
        return SVGPRegressor(10, learning_rate=rate, max_iter=8, batch_size=64, random_state=0)

    rate, reached = choose_rate(make, SINC.X_train, SINC.y_train, RATES, seed=0)
    assert set(reached) == {str(one) for one in RATES}
    assert reached[str(rate)] == max(reached.values())


def test_of_one_rate_there_is_nothing_to_choose():
    assert choose_rate(None, SINC.X_train, SINC.y_train, (0.1,), seed=0) == (0.1, {})


@pytest.mark.parametrize("error", [torch.linalg.LinAlgError, BoundNotFiniteError])
def test_a_run_that_breaks_down_is_not_chosen(error):
    class Broken:
        def fit(self, X, y):
            raise error("not positive definite, or not finite")

    def make(rate):
        return Broken() if rate == 0.1 else SVGPRegressor(5, learning_rate=rate, max_iter=2)

    rate, reached = choose_rate(make, SINC.X_train, SINC.y_train, (0.1, 0.01), seed=0)
    assert rate == 0.01
    assert reached["0.1"] is None


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
