"""The two hot operators, K_Xα a and aᵀK_{α,S} a_S, and their small dense relatives.

Nobody outside this package knows about blocks, Numba or devices; of threads only the predictor does,
which hands out its rows as jobs (`threads.run_all`).
"""

from decoupledgp.ops.cholesky import safe_cholesky
from decoupledgp.ops.explained import row_norms
from decoupledgp.ops.exponential import exp_dense, exp_matmul
from decoupledgp.ops.features import multiscale_features
from decoupledgp.ops.generic import kernel_dense, kernel_matmul
from decoupledgp.ops.held_values import Held, RowGram, held_values
from decoupledgp.ops.matern import MATERN_ORDERS, matern, matern_gram, matern_matmul
from decoupledgp.ops.multiscale import multiscale_gram, multiscale_matmul, multiscale_quadratic

__all__ = [
    "MATERN_ORDERS",
    "Held",
    "RowGram",
    "exp_dense",
    "exp_matmul",
    "held_values",
    "kernel_dense",
    "kernel_matmul",
    "matern",
    "matern_gram",
    "matern_matmul",
    "multiscale_features",
    "multiscale_gram",
    "multiscale_matmul",
    "multiscale_quadratic",
    "row_norms",
    "safe_cholesky",
]
