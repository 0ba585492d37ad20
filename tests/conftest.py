"""Shape contracts (jaxtyping) are checked at run time in all tests, outside the compiled loops."""

import torch
from jaxtyping import install_import_hook

CHECKED = [
    f"decoupledgp.{name}"
    for name in (
        "bases",
        "bound",
        "data",
        "kernels",
        "learners",
        "likelihoods",
        "online",
        "ops.explained",
        "ops.exponential",
        "ops.generic",
        "ops.multiscale",
        "posteriors",
        "collapsed",
        "solvers",
        "ops.cholesky",
    )
]

install_import_hook(CHECKED, "beartype.beartype")

# Tables in tests are small: one thread is as fast as several, and does not wait for busy cores.
torch.set_num_threads(1)
