"""Where rows come from and how they are prepared."""

from decoupledgp.data.checks import require_finite
from decoupledgp.data.datasets import Split, load_kin40k, make_sinc
from decoupledgp.data.minibatches import consecutive_batches, shuffled_batches
from decoupledgp.data.standardize import Standardizer

__all__ = [
    "Split",
    "Standardizer",
    "consecutive_batches",
    "load_kin40k",
    "make_sinc",
    "require_finite",
    "shuffled_batches",
]
