"""Ways to learn a posterior, one file each; the online ones have the same face: `step` and `grow`."""

from decoupledgp.learners.gradient import GradientLearner, StepResult, paper_schedule
from decoupledgp.learners.mirror import MirrorLearner
from decoupledgp.learners.natural import NaturalLearner

__all__ = ["GradientLearner", "MirrorLearner", "NaturalLearner", "StepResult", "paper_schedule"]
