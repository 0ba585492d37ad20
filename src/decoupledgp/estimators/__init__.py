"""The scikit-learn face."""

from decoupledgp.estimators.decoupled import DecoupledGPRegressor

__all__ = ["DecoupledGPRegressor"]
