"""Posterior families: mean and variance at x, KL to a prior."""

from decoupledgp.posteriors.decoupled import DecoupledPosterior
from decoupledgp.posteriors.measure import DecoupledMeasure, kl_divergence
from decoupledgp.posteriors.residual import ResidualMeasure, ResidualPosterior
from decoupledgp.posteriors.shared import SharedMeasure, SharedPosterior
from decoupledgp.posteriors.values import ValuesMeasure, ValuesPosterior

__all__ = [
    "DecoupledMeasure",
    "DecoupledPosterior",
    "ResidualMeasure",
    "ResidualPosterior",
    "SharedMeasure",
    "SharedPosterior",
    "ValuesMeasure",
    "ValuesPosterior",
    "kl_divergence",
]
