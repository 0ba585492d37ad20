"""Climbing where the objective does not exist everywhere."""

import pytest
import torch

from decoupledgp.learners.batch import maximise


def climb(objective, start):
    p = torch.nn.Parameter(torch.tensor([float(start)], dtype=torch.float64))
    maximise(lambda: objective(p), [p], solver="lbfgs", max_iter=50, after_step=lambda: False)
    return p.item()


@pytest.mark.parametrize("error", [ValueError, torch.linalg.LinAlgError, None])
def test_points_at_which_it_does_not_exist_are_stepped_back_from(error):
    """A slope of one for a long way makes the steps long; the top is at 2 - log(3)/3, the end at 2.5."""
    tried = []

    def objective(p):
        tried.append(p.item())
        if p.item() > 2.5:
            if error:
                raise error("no such point")
            return p.sum() * torch.nan
        return (p - torch.exp(3 * (p - 2))).sum()

    assert abs(climb(objective, -50) - 1.6338) < 1e-2
    assert max(tried) > 2.5


def test_an_objective_that_never_exists_says_so():
    def objective(p):
        raise ValueError("shapes do not fit")

    with pytest.raises(ValueError, match="shapes do not fit"):
        climb(objective, 0)
