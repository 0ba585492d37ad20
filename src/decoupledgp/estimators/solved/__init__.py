"""Models that are solved for, not climbed to: the default of `DecoupledGPRegressor`.

`model` is what is kept and how it predicts, `stream` learns from further rows, `run` from a table;
`sites` does both for likelihoods other than Gaussian noise.
"""

from decoupledgp.estimators.solved.model import Follow, Sizes, SolvedModel, Table
from decoupledgp.estimators.solved.run import SolvedRun
from decoupledgp.estimators.solved.sites import SitesRun

__all__ = ["Follow", "SitesRun", "Sizes", "SolvedModel", "SolvedRun", "Table"]
