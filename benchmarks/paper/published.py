"""The numbers of Cheng & Boots (NIPS 2017): table 2 and the tables of appendix D, as printed.

Bounds are in 10⁵ and on held-out rows. Rows are the outputs Y_1, Y_2, ...; columns are the systems
in the order of `SYSTEMS`. The means and standard deviations that the paper prints below each table
(and as table 2) are kept beside them, so that a slip in copying would show.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

__all__ = ["COMPLEXITY", "PUBLISHED", "ROWS", "SYSTEMS", "Published"]

SYSTEMS = ("svdgp", "svi", "ivsgpr", "vsgpr", "gpr")

ROWS = {
    "kuka1": (178_128, 19_792),
    "kuka2": (178_128, 19_792),
    "mujoco1": (842_745, 93_608),
    "mujoco2": (842_745, 93_608),
}
"""Training and test rows. Section 4.1 gives one pair for KUKA1 and KUKA2, one for MUJOCO1 and 2."""


class Published(NamedTuple):
    """One of the paper's tables: values (outputs, systems), with the printed mean and deviation."""

    values: np.ndarray
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def of(self, system: str, output: int) -> float:
        """Return the value of a system for an output, which is counted from 1."""
        return float(self.values[output - 1, SYSTEMS.index(system)])


def _table(text: str) -> Published:
    """Read lines of one output each, the last two being mean and standard deviation."""
    rows = [tuple(map(float, line.split())) for line in text.strip().splitlines()]
    return Published(np.array(rows[:-2]), rows[-2], rows[-1])


PUBLISHED: dict[tuple[str, str], Published] = {
    ("kuka1", "bound"): _table("""
        0.985  0.336  0.411  0.085   -3.840
        1.359  0.458  0.799  0.468  -23.218
        0.951  0.312  0.543  0.158   -8.145
        1.453  0.528  0.906  0.722   -0.965
        1.350  0.311  0.377  0.425   -0.990
        1.278  0.367  0.631  0.559   -0.639
        1.458  0.425  0.877  0.886    0.449
        1.262  0.391  0.649  0.472   -5.335
        0.195  0.076  0.201  0.265    7.777
    """),
    ("kuka1", "nmse"): _table("""
        0.058  0.186  0.165  0.171  0.257
        0.028  0.146  0.095  0.126  0.249
        0.058  0.195  0.133  0.181  0.298
        0.027  0.124  0.088  0.114  0.198
        0.028  0.195  0.178  0.132  0.243
        0.034  0.178  0.137  0.140  0.224
        0.028  0.155  0.099  0.108  0.146
        0.037  0.169  0.128  0.139  0.231
        0.013  0.025  0.033  0.026  0.045
    """),
    ("kuka2", "bound"): _table("""
        1.047  0.398  0.631  0.399   -3.709
        1.387  0.450  0.767  0.515  -31.315
        0.976  0.321  0.568  0.232  -12.230
        1.404  0.507  0.630  0.654   -1.026
        1.332  0.317  0.378  0.511   -0.340
        1.260  0.368  0.585  0.538   -0.221
        1.405  0.437  0.519  0.918    0.526
        1.259  0.400  0.583  0.538   -6.902
        0.165  0.065  0.110  0.197   10.770
    """),
    ("kuka2", "nmse"): _table("""
        0.056  0.168  0.126  0.151  0.281
        0.026  0.147  0.102  0.124  0.248
        0.056  0.194  0.127  0.179  0.325
        0.029  0.127  0.127  0.110  0.186
        0.029  0.189  0.170  0.125  0.232
        0.035  0.181  0.144  0.144  0.232
        0.034  0.152  0.166  0.104  0.133
        0.038  0.166  0.137  0.134  0.234
        0.012  0.023  0.022  0.024  0.058
    """),
    ("mujoco1", "bound"): _table("""
        7.373  3.195  5.948  4.312     -22.256
        6.019  2.141  3.905  2.328     -45.351
        6.350  2.543  4.695  2.991    -147.881
        5.852  2.417  4.792  2.468     -23.999
        6.280  2.609  5.316  3.622      -8.626
        5.152  1.043  4.418  3.452  -11296.669
        5.270  2.093  4.183  1.676   -7745.055
        6.471  2.585  5.040  3.068     -47.540
        5.293  0.979  2.592  1.482  -73477.168
        6.007  2.178  4.543  2.822  -10312.727
        0.673  0.692  0.898  0.871   22679.778
    """),
    ("mujoco1", "nmse"): _table("""
        0.049  0.087  0.067  0.088  0.133
        0.068  0.163  0.112  0.122  0.196
        0.064  0.134  0.091  0.112  0.213
        0.073  0.144  0.087  0.121  0.179
        0.068  0.132  0.080  0.103  0.159
        0.094  0.251  0.107  0.131  0.253
        0.084  0.168  0.100  0.145  0.348
        0.063  0.132  0.087  0.104  0.178
        0.088  0.255  0.165  0.131  0.258
        0.072  0.163  0.099  0.118  0.213
        0.013  0.053  0.026  0.016  0.061
    """),
    ("mujoco2", "bound"): _table("""
        7.249  3.013  6.429  4.161      -33.219
        5.994  2.475  4.800  2.770      -23.276
        6.239  2.258  4.819  3.044      -59.757
        5.935  2.093  4.489  2.547      -27.259
        6.387  2.452  5.457  3.725       -1.786
        7.320  1.087  4.639  4.043      -24.198
        5.346  1.754  3.947  1.667  -255179.052
        6.448  2.505  5.193  3.812     -190.294
        6.237  0.683  2.596  2.241   -37673.328
        6.350  2.036  4.708  3.112   -32579.130
        0.586  0.699  0.993  0.825    79570.425
    """),
    ("mujoco2", "nmse"): _table("""
        0.051  0.095  0.056  0.085  0.138
        0.069  0.133  0.085  0.111  0.186
        0.066  0.149  0.087  0.113  0.182
        0.071  0.160  0.094  0.127  0.197
        0.065  0.137  0.074  0.101  0.148
        0.051  0.241  0.097  0.073  0.139
        0.081  0.187  0.107  0.142  0.363
        0.063  0.133  0.081  0.106  0.214
        0.067  0.270  0.157  0.106  0.300
        0.065  0.167  0.093  0.107  0.207
        0.009  0.053  0.026  0.019  0.072
    """),
}
"""By data set and measure."""

COMPLEXITY = {
    "svdgp": ("D N M_α + N M_β² + M_β³", "N M_α + M_β²"),
    "svi": ("D N M + N M² + M³", "N M + M²"),
    "ivsgpr": ("D N M + N M² + M³", "N M + M²"),
    "vsgpr": ("D N M + N M² + M³", "N M + M²"),
    "gpr": ("D N² + N³", "N²"),
}
"""Time and space of table 1; N is the size of a minibatch, for the batch systems all rows."""
