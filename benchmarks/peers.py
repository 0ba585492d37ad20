"""`DecoupledGPRegressor()` with nothing else, beside GPyTorch's SVGP and gradient boosting.

    python -m benchmarks.peers [--data ../shared/data] [--sets kin40k protein] [--folds 0] [--steps 150]

SVGP: 1,024 inducing points (random rows, learnt), ARD squared-exponential kernel, Cholesky variational
distribution, Adam with a learning rate of 0.01 for everything, minibatches of 1,024 rows; several
outputs as independent ones that share nothing but the call. Gradient boosting: scikit-learn's
HistGradientBoostingRegressor as it comes, one per output. Every model runs in a process of its own;
memory is its peak resident size. Scores are means over outputs, in standard deviations of the target.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import describe
from benchmarks.processes import measure_apart, peak_megabytes
from benchmarks.tables import SETS, load
from decoupledgp import DecoupledGPRegressor
from decoupledgp.data import Split

INDUCING, BATCH, RATE = 1024, 1024, 0.01
LEVELS = {0.5: 0.674, 0.8: 1.282, 0.95: 1.96}


def ours(split: Split, fold: int, steps: int) -> tuple[np.ndarray, np.ndarray | None, float]:
    """Return mean, standard deviation and seconds of learning of the defaults."""
    start = time.perf_counter()
    model = DecoupledGPRegressor(random_state=fold).fit(split.X_train, split.y_train)
    seconds = time.perf_counter() - start
    mean, std = model.predict(split.X_test, return_std=True)
    return mean, std, seconds


def svgp(split: Split, fold: int, steps: int) -> tuple[np.ndarray, np.ndarray | None, float]:
    """The same of GPyTorch's stochastic variational GP."""
    import gpytorch
    from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy

    torch.manual_seed(fold)
    X, Y = (torch.from_numpy(part).float() for part in (split.X_train, split.y_train))
    outputs = torch.Size([Y.shape[1]] if Y.shape[1] > 1 else [])

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            points = X[torch.randperm(len(X))[:INDUCING]].expand(*outputs, -1, -1).clone()
            q = CholeskyVariationalDistribution(points.shape[-2], batch_shape=outputs)
            super().__init__(VariationalStrategy(self, points, q))
            self.mean_module = gpytorch.means.ConstantMean(batch_shape=outputs)
            rbf = gpytorch.kernels.RBFKernel(ard_num_dims=X.shape[1], batch_shape=outputs)
            self.covar_module = gpytorch.kernels.ScaleKernel(rbf, batch_shape=outputs)

        def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    model = Model()
    likelihood = gpytorch.likelihoods.GaussianLikelihood(batch_shape=outputs)
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(X))
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=RATE)
    start = time.perf_counter()
    for _ in range(steps):
        rows = torch.randint(len(X), (BATCH,))
        optimizer.zero_grad()
        target = Y[rows].T if outputs else Y[rows, 0]
        (-bound(model(X[rows]), target).sum()).backward()
        optimizer.step()
    seconds = time.perf_counter() - start
    model.eval()
    likelihood.eval()
    means, deviations = [], []
    with torch.no_grad():
        for part in torch.from_numpy(split.X_test).float().split(BATCH):
            y = likelihood(model(part))
            means.append(y.mean.reshape(-1, len(part)).T)
            deviations.append(y.variance.sqrt().reshape(-1, len(part)).T)
    return torch.cat(means).numpy(), torch.cat(deviations).numpy(), seconds


def boosting(split: Split, fold: int, steps: int) -> tuple[np.ndarray, np.ndarray | None, float]:
    """The same of gradient boosting, which has no standard deviation."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    start = time.perf_counter()
    models = [
        HistGradientBoostingRegressor(random_state=fold).fit(split.X_train, target)
        for target in split.y_train.T
    ]
    seconds = time.perf_counter() - start
    return np.column_stack([model.predict(split.X_test) for model in models]), None, seconds


PEERS = {"ours": ours, "svgp": svgp, "boosting": boosting}
NAMES = {
    "ours": "DecoupledGPRegressor()",
    "svgp": "GPyTorch SVGP-1024, {steps} steps",
    "boosting": "HistGradientBoosting",
}


def measure(peer: str, name: str, fold: int, folder: Path, steps: int) -> dict[str, Any]:
    """Return the scores of one model on one split."""
    split = load(name, fold, folder)
    mean, std, seconds = PEERS[peer](split, fold, steps)
    mean = mean.reshape(split.y_test.shape)
    error = mean - split.y_test
    scores: dict[str, Any] = {
        "RMSE": np.sqrt(np.mean(error**2)),
        "nMSE": np.mean(np.mean(error**2, 0) / split.y_test.var(0)),
    }
    if std is not None:
        std = std.reshape(mean.shape)
        scores["NLL"] = np.mean(0.5 * np.log(2 * np.pi * std**2) + 0.5 * (error / std) ** 2)
        for level, z in LEVELS.items():
            scores[f"{level:.0%}"] = np.mean(np.abs(error) < z * std)
    return {**scores, "seconds": seconds, "MB": peak_megabytes()}


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--folds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    columns = ("RMSE", "nMSE", "NLL", *(f"{level:.0%}" for level in LEVELS), "seconds", "MB")
    print(f"{describe()}\n\n| set | fold | model | {' | '.join(columns)} |")
    print("| --- | ---: | --- |" + " ---: |" * len(columns))
    for name in options.sets:
        for fold in options.folds:
            for peer in options.peers:
                arguments = (peer, name, fold, options.data, options.steps)
                scores = measure_apart(measure, *arguments)
                cells = [_cell(column, scores.get(column)) for column in columns]
                title = NAMES[peer].format(steps=options.steps)
                print(f"| {name} | {fold} | {title} | {' | '.join(cells)} |", flush=True)


def _cell(column: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if column in ("seconds", "MB") else f"{value:.4f}"


if __name__ == "__main__":
    main()
