"""Without gradients: kernel, mean and covariance are solved for, variances calibrated."""

from decoupledgp.solvers.calibration import Calibration, HeldOut, calibrate
from decoupledgp.solvers.cells import Cells
from decoupledgp.solvers.covariance import CovarianceSolution, solve_covariance
from decoupledgp.solvers.hyperparameters import learn_hyperparameters
from decoupledgp.solvers.mean import MeanProblem, MeanSolution, solve_mean
from decoupledgp.solvers.rows import Rows
from decoupledgp.solvers.sweeps import Sweeps

__all__ = [
    "Calibration",
    "Cells",
    "CovarianceSolution",
    "HeldOut",
    "MeanProblem",
    "MeanSolution",
    "Rows",
    "Sweeps",
    "calibrate",
    "learn_hyperparameters",
    "solve_covariance",
    "solve_mean",
]
