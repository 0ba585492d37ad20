"""Posterior families: mean and variance at x, KL to a prior."""

from decoupledgp.posteriors.decoupled import DecoupledPosterior
from decoupledgp.posteriors.measure import DecoupledMeasure, kl_divergence

__all__ = ["DecoupledMeasure", "DecoupledPosterior", "kl_divergence"]
