"""What the constructor's None means: the defaults, and the paper's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from gpytorch.kernels import Kernel, ScaleKernel

from decoupledgp.kernels import is_se_ard

__all__ = ["PRESETS", "Settings", "default_basis", "resolve"]


@dataclass(frozen=True)
class Settings:
    """Sizes and rates of a run. The names are the constructor's, the letters the paper's."""

    n_mean_basis: int = 4096
    """M_α."""
    n_cov_basis: int = 128
    """M_β."""
    max_iter: int = 300
    """T, for `fit`; `partial_fit` takes one iteration per minibatch."""
    batch_size: int = 1024
    """N_m."""
    basis_increment: int = 128
    """N_Δ."""
    kl_batch_size: int = 1024
    """|S|."""
    learning_rate: float = 0.1
    """γ_0."""
    natural_rate: float | None = 0.1
    """Step of the natural gradient, where there is one; None is γ_t."""
    whole_table: bool = False
    """Whether N is the table's from `fit`'s first step on, and not the rows seen so far, with which
    `partial_fit` on the same minibatches ends at the same model."""
    whitened: bool = True
    """Whether SVI keeps q of the whitened values while functions and kernel move, or of the values."""
    lengthscale_per_feature: bool = False
    """Whether first length-scales are median distances in each feature, or one between rows for all."""
    basis: str = "multiscale"
    mean_preconditioner: str = "jacobi"
    """How a is parametrised."""
    cov_preconditioner: str = "jacobi"
    """How L is parametrised."""


PRESETS: dict[str | None, Settings] = {
    None: Settings(),
    # Section 4: M_α = 128², M_β = 128, T = 2000, N_m = 1024, N_Δ = 128; columns of K_α are sampled
    # "with a mini-batch of size N_m"; γ_0 was chosen from {0.1, 0.01, 0.001} per data set; γ_t is
    # "the step-size for each stochastic algorithm", natural gradients' and mirror ascent's too; SVI has
    # the canonical parametrisation by mean and covariance of the values (equation 4); "s_d is initialized as
    # the median of pairwise distances": in feature d, the reading that suits SVDGP (docs/results.md).
    "paper": Settings(
        n_mean_basis=128**2,
        max_iter=2000,
        natural_rate=None,
        whole_table=True,
        whitened=False,
        lengthscale_per_feature=True,
    ),
}


def resolve(params: Mapping[str, Any]) -> Settings:
    """Return the preset with every argument that was given explicitly put in its place."""
    settings = PRESETS[params["preset"]]
    defaults = asdict(settings)
    given: dict[str, Any] = {
        name: (float if default is None else type(default))(params[name])  # no NumPy numbers
        for name, default in defaults.items()
        if params.get(name) is not None
    }
    given.setdefault("basis", default_basis(params["kernel"]))
    return replace(settings, **given)


def default_basis(kernel: Kernel | str | None) -> str:
    """Return the basis for a kernel: multiscale for SE-ARD, which a word or None is, points for others."""
    base = kernel.base_kernel if isinstance(kernel, ScaleKernel) else kernel
    return "points" if isinstance(base, Kernel) and not is_se_ard(base) else "multiscale"
