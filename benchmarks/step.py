"""Time and peak memory of one learning step against M_α.

    python -m benchmarks.step [--rows 1024] [--features 23] [--cov 128] [--columns 1024]

Each size runs in a process of its own; memory is the growth of its peak resident size over what it
had before the model was built. The last columns are what naive arrays would need.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np
import torch

from benchmarks.machine import describe
from decoupledgp.bases import MultiscaleBasis
from decoupledgp.kernels import se_ard
from decoupledgp.learners import GradientLearner
from decoupledgp.likelihoods import gaussian_likelihood
from decoupledgp.posteriors import DecoupledPosterior


def measure(m_alpha: int, options: argparse.Namespace) -> dict[str, float]:
    """Return the median seconds of a step and the megabytes it added to the process."""
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(rng.standard_normal((options.rows, options.features))).float()
    targets = torch.from_numpy(rng.standard_normal((options.rows, options.outputs))).float()

    def learner(size: int) -> GradientLearner:
        z = torch.from_numpy(rng.standard_normal((size, options.features))).float()
        posterior = DecoupledPosterior(
            se_ard(options.features),
            MultiscaleBasis(z),
            MultiscaleBasis(z[: options.cov]),
            n_outputs=options.outputs,
        )
        posterior.kernel.base_kernel.lengthscale = (2 * options.features) ** 0.5
        likelihood = gaussian_likelihood(options.outputs)
        return GradientLearner(
            posterior, likelihood, learning_rate=0.01, kl_batch_size=options.columns
        )

    def step(run: GradientLearner, t: int) -> None:
        run.step(rows, targets, n_total=10**6, iteration=t, rng=rng)

    step(learner(options.cov), 1)  # compiles, and warms up every library
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run, seconds = learner(m_alpha), []
    for t in range(1, options.repeats + 2):
        start = time.perf_counter()
        step(run, t)
        seconds.append(time.perf_counter() - start)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": float(np.median(seconds[1:])), "megabytes": (after - before) / 1024}


def main() -> None:
    """Print a Markdown table over M_α."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--features", type=int, default=23)
    parser.add_argument("--outputs", type=int, default=1)
    parser.add_argument("--cov", type=int, default=128)
    parser.add_argument("--columns", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2**k for k in range(10, 16)])
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options)))
        return
    print(
        f"N_m = {options.rows}, D = {options.features}, P = {options.outputs}, M_β = {options.cov}, "
        f"|S| = {options.columns}, multiscale, float32; {describe()}\n"
    )
    print("| M_α | seconds | added MB | N_m × M_α × D, MB | M_α × M_α, MB |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for size in options.sizes:
        command = [sys.executable, "-m", "benchmarks.step", *sys.argv[1:], "--one", str(size)]
        result = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        naive = (options.rows * size * options.features * 4, size * size * 4)
        print(
            f"| {size} | {result['seconds']:.3f} | {result['megabytes']:.0f} | "
            f"{naive[0] / 2**20:.0f} | {naive[1] / 2**20:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
