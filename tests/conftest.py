"""Shape contracts (jaxtyping) are checked at run time in all tests, outside the compiled loops."""

import pytest
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
        "ops.matern",
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


@pytest.fixture
def few_groups(monkeypatch):
    """Fewer neighbourhoods than users have: functions in tests are easy, and tests are many."""
    from decoupledgp.solvers import hyperparameters  # not before the import hook

    monkeypatch.setattr(hyperparameters, "GROUPS", 8)


def pytest_collection_modifyitems(items):
    """Put the longest tests first, so that both cores end together."""
    items.sort(key=lambda item: "test_demo" not in item.nodeid)
