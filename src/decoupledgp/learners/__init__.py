"""Ways to learn a posterior, one file each, all with the same small face: `step` and `grow`."""

from decoupledgp.learners.gradient import GradientLearner, StepResult, paper_schedule

__all__ = ["GradientLearner", "StepResult", "paper_schedule"]
