"""The parts without the estimator: a feature network in front, any optimiser, your own loop."""

import gpytorch
import torch

from decoupledgp.bases import PointBasis
from decoupledgp.bound import elbo
from decoupledgp.posteriors import DecoupledPosterior

torch.manual_seed(0)
x = torch.rand(5000, 10) * 4 - 2
y = torch.sin(x[:, :1] - x[:, 1:2]) + 0.1 * torch.randn(5000, 1)

network = torch.nn.Sequential(
    torch.nn.Linear(10, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2), torch.nn.BatchNorm1d(2)
)
start = network(x[:500]).detach()
posterior = DecoupledPosterior(
    gpytorch.kernels.MaternKernel(), PointBasis(start), PointBasis(start[:50])
)
likelihood = gpytorch.likelihoods.GaussianLikelihood()

modules = torch.nn.ModuleList([network, posterior, likelihood])
optimizer = torch.optim.AdamW(modules.parameters(), lr=0.01)
for _ in range(300):
    rows = torch.randint(len(x), (512,))
    columns = torch.randperm(posterior.n_mean)[:128]  # estimate the mean's KL from some columns
    bound = elbo(
        posterior.measure(), likelihood, network(x[rows]), y[rows], n_total=len(x), columns=columns
    )
    optimizer.zero_grad()
    (-bound).backward()
    optimizer.step()

with torch.no_grad():
    prediction = likelihood(posterior(network(x[:1000])))  # a GPyTorch MultivariateNormal
    error = (prediction.mean - y[:1000, 0]).square().mean() / y[:1000].var()
print(f"bound per row {bound.item() / len(x):.3f}, nMSE {error:.3f}")
