"""Basis functions of the posterior's mean and covariance."""

from decoupledgp.bases.base import Basis, Functions
from decoupledgp.bases.functions import KernelFunctions, MaternFunctions, SEFunctions
from decoupledgp.bases.multiscale import MultiscaleBasis
from decoupledgp.bases.points import PointBasis

__all__ = [
    "BASES",
    "Basis",
    "Functions",
    "KernelFunctions",
    "MaternFunctions",
    "MultiscaleBasis",
    "PointBasis",
    "SEFunctions",
]

BASES: dict[str, type[PointBasis] | type[MultiscaleBasis]] = {
    "points": PointBasis,
    "multiscale": MultiscaleBasis,
}
"""The bases by the name that the estimators' `basis` argument takes."""
