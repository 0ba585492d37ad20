"""Small decoupled posteriors with random parameters, and what the dense references need of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from gpytorch.kernels import MaternKernel, RQKernel
from gpytorch.likelihoods import GaussianLikelihood

import dense
from decoupledgp.bases import MultiscaleBasis, PointBasis
from decoupledgp.kernels import scaled_kernel, se_ard
from decoupledgp.likelihoods import gaussian_likelihood
from decoupledgp.posteriors import DecoupledPosterior

D = 2
KINDS = ("points", "multiscale", "matern", "any")

BASES = {
    "matern": lambda: MaternKernel(nu=2.5, ard_num_dims=D),
    "any": lambda: RQKernel(ard_num_dims=D),  # without a road of its own
}
"""Unscaled kernels other than the squared exponential, by kind."""


@dataclass
class Case:
    """A posterior, its likelihood, some rows, and the same in NumPy."""

    kind: str
    posterior: DecoupledPosterior
    likelihood: GaussianLikelihood
    x: torch.Tensor
    y: torch.Tensor

    @property
    def rho2(self):
        return self.posterior.kernel.outputscale.detach().double().numpy()

    @property
    def noise(self):
        return self.likelihood.noise.detach().double().numpy().ravel()

    @property
    def s(self):
        return self.posterior.kernel.base_kernel.lengthscale.detach().double().numpy().ravel()

    def locations(self, basis):
        """Locations and absolute length-scales of a basis, or of rows (for which l = s)."""
        if isinstance(basis, torch.Tensor):
            z = basis.detach().double().numpy()
            return z, np.tile(self.s, (len(z), 1))
        z = basis.locations.detach().double().numpy()
        if isinstance(basis, MultiscaleBasis):
            return z, self.s * basis.multipliers.detach().double().numpy()
        return z, np.tile(self.s, (len(z), 1))

    def gram(self, *parts):
        """Dense unscaled Gram matrix of several bases and row sets joined."""
        z, l = (np.concatenate(t) for t in zip(*(self.locations(p) for p in parts), strict=True))
        if self.kind == "matern":
            return dense.matern_gram(z, z, self.s)
        if self.kind == "any":
            alpha = self.posterior.kernel.base_kernel.alpha.item()
            return dense.rational_quadratic_gram(z, z, self.s, alpha)
        return dense.multiscale_gram(z, l, z, l)

    def coefficients(self, output=0):
        """a and B as they act, in NumPy."""
        q = self.posterior.measure()
        L = q.L[output].detach().numpy()
        return q.a[:, output].detach().double().numpy(), L @ L.T


def make_case(
    kind, *, n=12, m_alpha=6, m_beta=4, outputs=1, seed=0, dtype=torch.float64, **options
):
    """Return a case with random everything."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)

    base = (BASES[kind]() if kind in BASES else se_ard(D)).to(dtype)
    base.lengthscale = torch.tensor([[0.9, 1.4]], dtype=dtype)
    kernel = scaled_kernel(base, outputs).to(dtype)
    kernel.outputscale = (0.5 * normal(outputs)).exp()

    def basis(m):
        if kind == "multiscale":
            return MultiscaleBasis(normal(m, D), (0.3 * normal(m, D)).exp())
        return PointBasis(normal(m, D))

    posterior = DecoupledPosterior(
        kernel, basis(m_alpha), basis(m_beta), n_outputs=outputs, **options
    )
    with torch.no_grad():
        posterior.mean_coefficients.copy_(normal(*posterior.mean_coefficients.shape))
        posterior.cov_factor.copy_(normal(*posterior.cov_factor.shape))
    likelihood = gaussian_likelihood(outputs).to(dtype)
    likelihood.noise = 0.1 + normal(outputs, 1).square()
    return Case(kind, posterior, likelihood, normal(n, D), normal(n, outputs))
