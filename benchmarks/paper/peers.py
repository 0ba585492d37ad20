"""What stands beside the paper's systems: GPyTorch's SVGP for a given time, boosting, a linear fit."""

from __future__ import annotations

import time
from typing import Any

import torch

from benchmarks.paper.evaluate import point_scores
from decoupledgp.data import Split

__all__ = ["boosting", "linear", "svgp"]

RATE = 0.01
"""Adam's learning rate for SVGP."""


def svgp(split: Split, inducing: int, batch: int, seconds: float, seed: int) -> dict[str, Any]:
    """Learn GPyTorch's stochastic variational GP by Adam until the time is over; one output.

    Inducing points are random rows and are learnt; ARD squared-exponential kernel, Cholesky
    variational distribution, float32.
    """
    import gpytorch
    from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy

    torch.manual_seed(seed)
    X, y, X_test, y_test = (torch.from_numpy(part).float() for part in split)
    points = X[torch.randperm(len(X))[:inducing]].clone()

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            q = CholeskyVariationalDistribution(len(points))
            super().__init__(VariationalStrategy(self, points, q))
            self.mean_module = gpytorch.means.ConstantMean()
            rbf = gpytorch.kernels.RBFKernel(ard_num_dims=X.shape[1])
            self.covar_module = gpytorch.kernels.ScaleKernel(rbf)

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    model, likelihood = Model(), gpytorch.likelihoods.GaussianLikelihood()
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(X))
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=RATE)
    start, steps = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        rows = torch.randint(len(X), (batch,))
        optimizer.zero_grad()
        (-bound(model(X[rows]), y[rows])).backward()
        optimizer.step()
        steps += 1
    taken = time.perf_counter() - start
    model.eval()
    likelihood.eval()
    likely, means, deviations = 0.0, [], []
    with torch.no_grad():
        for x, target in zip(X_test.split(batch), y_test.split(batch), strict=True):
            f = model(x)
            likely += float(likelihood.expected_log_prob(target, f).sum())
            prediction = likelihood(f)
            means.append(prediction.mean)
            deviations.append(prediction.variance.sqrt())
        kl = float(model.variational_strategy.kl_divergence())
    mean, std = (torch.cat(parts).double().numpy() for parts in (means, deviations))
    return {
        **point_scores(split.y_test, mean, std),
        "bound": len(X) * likely / len(X_test) - kl,
        "seconds": taken,
        "steps": steps,
    }


def boosting(split: Split, seed: int) -> dict[str, Any]:
    """Return the scores of scikit-learn's HistGradientBoostingRegressor as it comes."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    return _point_model(HistGradientBoostingRegressor(random_state=seed), split)


def linear(split: Split) -> dict[str, Any]:
    """Return the scores of linear regression."""
    from sklearn.linear_model import LinearRegression

    return _point_model(LinearRegression(), split)


def _point_model(model: Any, split: Split) -> dict[str, Any]:
    start = time.perf_counter()
    model.fit(split.X_train, split.y_train)
    seconds = time.perf_counter() - start
    return {**point_scores(split.y_test, model.predict(split.X_test), None), "seconds": seconds}
