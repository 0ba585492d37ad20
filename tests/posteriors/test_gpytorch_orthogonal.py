"""What GPyTorch's OrthogonallyDecoupledVariationalStrategy computes, found by running it.

Its mean is m_β(x) + Σ(x, γ) a with Σ the *posterior* covariance of the inner strategy, where the
family of Salimbeni et al. has the covariance of the prior given β; and its KL is that of the inner
strategy plus ½ aᵀΣ(γ, γ)a. The true KL of the process with that mean and covariance has a cross term
and Σ² in place of Σ. The two agree where the inner strategy knows its inducing values exactly.
"""

import gpytorch
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import dense

M, R, N, D = 3, 4, 6, 2


def run(spread):
    """Return (GPyTorch's KL, the true KL, its mean and ours at rows) for S = spread² I (whitened)."""
    rng = np.random.default_rng(0)
    beta, gamma, x = (torch.tensor(rng.uniform(-2, 2, (k, D))) for k in (M, R, N))

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self):
            inner_q = gpytorch.variational.CholeskyVariationalDistribution(M)
            inner = gpytorch.variational.VariationalStrategy(self, beta, inner_q)
            outer_q = gpytorch.variational.DeltaVariationalDistribution(R)
            strategy = gpytorch.variational.OrthogonallyDecoupledVariationalStrategy(
                inner, gamma, outer_q
            )
            super().__init__(strategy)
            self.covariance = gpytorch.kernels.RBFKernel()
            self.covariance.lengthscale = 1.0
            inner_q.variational_mean.data = torch.tensor(rng.standard_normal(M))
            inner_q.chol_variational_covar.data = spread * torch.eye(M)
            outer_q.variational_mean.data = torch.tensor(rng.standard_normal(R))
            for part in (strategy, inner):
                part.variational_params_initialized.fill_(1)
            self.inner_q, self.outer_q = inner_q, outer_q

        def forward(self, x):
            zero = torch.zeros(len(x), dtype=x.dtype)
            return gpytorch.distributions.MultivariateNormal(zero, self.covariance(x))

    model = Model().double().train()
    output = model(x)
    kl = float(model.variational_strategy.kl_divergence())

    points = torch.cat([beta, gamma, x]).numpy()
    G = dense.se_gram(points, points, np.ones(D))
    C = np.linalg.cholesky(G[:M, :M])
    A = np.linalg.solve(C, G[:M]).T  # all values against the whitened ones
    m = A @ model.inner_q.variational_mean.detach().numpy()
    Sigma = G - (1 - spread**2) * A @ A.T
    a = model.outer_q.variational_mean.detach().numpy()
    mean = m + Sigma[:, M : M + R] @ a
    few = slice(M + R)
    true = dense.gaussian_kl(mean[few], Sigma[few, few], np.zeros(M + R), G[few, few])
    given_beta = m + (G - A @ A.T)[:, M : M + R] @ a
    return kl, true, output.mean.detach().numpy(), mean[M + R :], given_beta[M + R :]


@pytest.mark.parametrize(
    ("spread", "its_kl", "true_kl"), [(0.3, 3.402, 3.421), (0.5, 2.127, 2.184), (1.0, 1.253, 1.561)]
)
def test_its_mean_is_through_the_posterior_covariance_and_its_kl_is_not_the_true_one(
    spread, its_kl, true_kl
):
    """The numbers are those of docs/systems.md."""
    kl, true, mean, through_posterior, given_beta = run(spread)
    assert_allclose(mean, through_posterior, atol=1e-4)
    assert np.abs(mean - given_beta).max() > 0.02
    assert_allclose([kl, true], [its_kl, true_kl], atol=6e-4)


def test_where_the_inner_strategy_is_certain_both_agree():
    kl, true, mean, _, given_beta = run(1e-3)
    assert_allclose(mean, given_beta, atol=1e-3)
    assert_allclose([kl, true], 20.369, atol=6e-4)
