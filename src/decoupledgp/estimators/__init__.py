"""The scikit-learn face."""

from decoupledgp.estimators.base import GPRegressor
from decoupledgp.estimators.batch import ExactGPRegressor, SparseGPRegressor
from decoupledgp.estimators.decoupled import DecoupledGPRegressor
from decoupledgp.estimators.shared import IncrementalGPRegressor, SVGPRegressor

__all__ = [
    "DecoupledGPRegressor",
    "ExactGPRegressor",
    "GPRegressor",
    "IncrementalGPRegressor",
    "SVGPRegressor",
    "SparseGPRegressor",
]
