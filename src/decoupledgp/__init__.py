"""Gaussian processes for large and streaming data, with separate bases for mean and covariance."""

from decoupledgp.estimators import (
    DecoupledGPRegressor,
    ExactGPRegressor,
    IncrementalGPRegressor,
    SparseGPRegressor,
    SVGPRegressor,
)
from decoupledgp.storage import ModelFileError

__all__ = [
    "DecoupledGPRegressor",
    "ExactGPRegressor",
    "IncrementalGPRegressor",
    "ModelFileError",
    "SVGPRegressor",
    "SparseGPRegressor",
    "__version__",
]

__version__ = "0.1.0"
