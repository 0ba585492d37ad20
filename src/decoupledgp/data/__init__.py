"""Where rows come from and how they are prepared."""

from decoupledgp.data.checks import require_finite, require_groups, require_row_numbers
from decoupledgp.data.datasets import Split, load_kin40k, make_sinc
from decoupledgp.data.minibatches import consecutive_batches, shuffled_batches
from decoupledgp.data.standardize import Standardizer
from decoupledgp.data.warp import Warp

__all__ = [
    "Split",
    "Standardizer",
    "Warp",
    "consecutive_batches",
    "load_kin40k",
    "make_sinc",
    "require_finite",
    "require_groups",
    "require_row_numbers",
    "shuffled_batches",
]
