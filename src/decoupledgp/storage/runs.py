"""What a file holds of a run: its JSON and its tensors, and the run that they make again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from decoupledgp.data import Standardizer, Warp
from decoupledgp.estimators.batch_state import BatchState
from decoupledgp.estimators.run import RUNS, Run
from decoupledgp.estimators.settings import Settings
from decoupledgp.estimators.solved import SitesRun, Sizes, SolvedRun, Table
from decoupledgp.estimators.state import State
from decoupledgp.kernels import radial_kernel, smoothness
from decoupledgp.learners import GradientLearner
from decoupledgp.ops import MATERN_ORDERS
from decoupledgp.solvers import Calibration, calibrate
from decoupledgp.solvers.sites import Marginals
from decoupledgp.storage.specs import freeze, frozen, set_state, state

__all__ = ["Groups", "require", "restore_run", "run_content", "run_tensors"]

DTYPES = {"float32": torch.float32, "float64": torch.float64}

FIRST = ("X", "Y", "weights", "known")
"""What is kept of the rows of a stream that has hardly begun."""

Groups = dict[str, dict[str, Tensor]]


def run_content(run: State) -> dict[str, Any]:
    """Return everything about a run that is no tensor."""
    content = {
        "partially_shared": run.posterior.partially_shared,
        "dtype": str(run.dtype).removeprefix("torch."),
        "device": str(run.device),
        "n_mean_basis": run.posterior.n_mean,
        "n_cov_basis": run.posterior.n_cov,
        "iteration": run.iteration,
        "n_rows": run.n_rows,
        "seconds": run.seconds,
        "history": run.history,
    }
    if isinstance(run, BatchState):
        return {**content, "basis": run.basis}
    if isinstance(run, SolvedRun):
        return {
            **content,
            "sizes": asdict(run.sizes),
            "solved_rows": run.solved_rows,
            "learnt_rows": run.learnt_rows,
            "joined_rows": run.joined_rows,
            "smoothness": str(smoothness(run.kernel.base_kernel)),
            "sites": isinstance(run, SitesRun),
            "weight_unit": run.weight_unit,
            "grouped": run.grouped,
            "calibrated": run.calibration is not None,
            "frozen": frozen(run.modules()),
            "rng": run.rng.bit_generator.state,
        }
    assert isinstance(run, Run)
    return {
        **content,
        "family": run.family,
        "n_unseen": run.n_unseen,
        "settings": asdict(run.settings),
        "frozen": frozen(run.online.learner.model),
        "online_iteration": run.online.iteration,
        "rng": run.rng.bit_generator.state,
    }


def run_tensors(run: State) -> dict[str, Mapping[str, Tensor | np.ndarray]]:
    """Return a run's tensors by group."""
    groups: dict[str, Mapping[str, Tensor | np.ndarray]] = {
        "posterior": state(run.posterior),
        "likelihood": state(run.likelihood),
        "x_scaler": _scaler_tensors(run.x_scaler),
        "y_scaler": _scaler_tensors(run.y_scaler),
        "start_kernel": {} if run.given_kernel is None else state(run.given_kernel),
        "start_likelihood": {} if run.given_likelihood is None else state(run.given_likelihood),
    }
    if run.x_scaler.warp is not None:
        groups["warp"] = vars(run.x_scaler.warp)
    if isinstance(run, SolvedRun):
        groups["solved"] = _solved_tensors(run)
    if isinstance(run, Run):
        groups["adam"] = run.online.learner.moments()
        groups["first_rows"] = _first_rows_tensors(run)
    return groups


def _scaler_tensors(scaler: Standardizer) -> dict[str, np.ndarray]:
    return {name: getattr(scaler, name) for name in ("centre", "scale", "varies")}


def _solved_tensors(run: SolvedRun) -> dict[str, np.ndarray | Tensor]:
    tensors: dict[str, np.ndarray | Tensor] = {
        **{f"cells.{name}": value for name, value in vars(run.cells).items()},
        **{f"held_out.{name}": value for name, value in vars(run.held_out).items()},
        "cov_bound": run.cov_bound,
        "cov_kl": run.cov_kl,
    }
    if isinstance(run, SitesRun):
        tensors.update({f"new.{name}": value for name, value in run.new._asdict().items()})
        if run.calibration is not None:
            tensors["factor"] = run.calibration.latent
            tensors["scores"] = run.calibration.scores
        if run.first is not None:
            tensors.update({f"first.{name}": value for name, value in vars(run.first).items()})
    return tensors


def _first_rows_tensors(run: Run) -> dict[str, np.ndarray]:
    """Return the rows of a stream that has hardly begun.

    Those that lie in memory column by column are stored so: sums depend on it in the last bit.
    """
    found = {}
    for k, (X, Y, _) in enumerate(run._first_rows):
        for name, part in ((f"{k}.x", X), (f"{k}.y", Y)):
            by_column = abs(part.strides[0]) < abs(part.strides[1])
            found[f"{name}.T" if by_column else name] = part.T if by_column else part
    return found


def restore_run(content: dict[str, Any], groups: Groups, **start: Any) -> State:
    """Rebuild a run from what a file holds."""
    x_scaler, y_scaler = _scaler(groups["x_scaler"]), _scaler(groups["y_scaler"])
    n_features, n_outputs = len(x_scaler.centre), len(y_scaler.centre)
    if "warp" in groups:
        x_scaler.warp = _warp(groups["warp"], n_features)
    _check_sizes(content, groups["posterior"], n_features, n_outputs)
    shape = {"n_features": n_features, "n_outputs": n_outputs}
    make: Callable[..., State] = _online_run
    if "basis" in content:
        make = _batch_state
    elif "sizes" in content:
        make = _solved_run
    run = make(content, groups, **shape, **start)
    run.x_scaler, run.y_scaler = x_scaler, y_scaler
    run.iteration, run.n_rows = _count(content["iteration"]), _count(content["n_rows"])
    run.seconds = float(content["seconds"])
    run.history = [dict(record) for record in content["history"]]
    return run


def _online_run(content: dict[str, Any], groups: Groups, **known: Any) -> Run:
    run = RUNS[content["family"]](
        _settings(content["settings"]),
        family=content["family"],
        partially_shared=content["partially_shared"],
        dtype=DTYPES[content["dtype"]],
        device=torch.device(content["device"]),
        rng=_generator(content["rng"]),
        **known,
    )
    learner = run.online.learner
    _fill(run, content, groups)
    learner.grow()
    freeze(learner.model, content["frozen"])
    _set_moments(learner, groups.get("adam", {}))
    run.online.iteration = _count(content["online_iteration"])
    run.n_unseen = _count(content.get("n_unseen", 0))
    first = groups.get("first_rows", {})
    run._first_rows = _first_rows(first, known["n_features"], known["n_outputs"])
    return run


def _batch_state(content: dict[str, Any], groups: Groups, **known: Any) -> BatchState:
    device = torch.device(content["device"])
    run = BatchState(basis=content["basis"], device=device, **known)
    _fill(run, content, groups)
    run.is_solved = True
    return run


def _solved_run(content: dict[str, Any], groups: Groups, **known: Any) -> SolvedRun:
    kind = SitesRun if content["sites"] else SolvedRun
    run = kind(Sizes(**content["sizes"]), rng=_generator(content["rng"]), **known)
    if run.given_kernel is None:  # older files know of the squared exponential alone
        run.kernel.base_kernel = _default_kernel(content.get("smoothness", "inf"), run)
    _fill(run, content, groups)
    freeze(run.modules(), content["frozen"])
    stored = {name: value.numpy() for name, value in groups["solved"].items()}
    m, k = len(stored["cells.counts"]), len(stored["held_out.weights"])
    n_features, n_outputs = known["n_features"], known["n_outputs"]
    shapes: dict[str, tuple[int, ...]] = {
        "cells.centres": (m, n_features),
        "cells.targets": (m, n_outputs),
        "cells.counts": (m,),
        "cells.rows": (m,),
        "cells.known": (m, n_outputs),
        "held_out.residuals": (k, n_outputs),
        "held_out.latent": (k, n_outputs),
        "held_out.weights": (k,),
        "held_out.known": (k, n_outputs),
        "cov_bound": (n_outputs,),
        "cov_kl": (n_outputs,),
    }
    if isinstance(run, SitesRun):
        shapes.update(_sites_shapes(stored, content["calibrated"], n_features, n_outputs))
    for name, shape in shapes.items():
        right = stored[name].shape == shape and stored[name].dtype == np.float64
        require(right, f"shape and type of {name}")
    require(m == run.posterior.n_mean, "number of cells")
    for part in ("cells", "held_out"):
        for name in vars(getattr(run, part)):
            setattr(getattr(run, part), name, stored[f"{part}.{name}"])
    run.cov_bound, run.cov_kl = groups["solved"]["cov_bound"], groups["solved"]["cov_kl"]
    run.solved_rows, run.learnt_rows, run.joined_rows = (
        _count(content[name]) for name in ("solved_rows", "learnt_rows", "joined_rows")
    )
    run.weight_unit, run.grouped = float(content["weight_unit"]), bool(content["grouped"])
    if isinstance(run, SitesRun):
        run.new = Marginals(*(groups["solved"][f"new.{name}"] for name in Marginals._fields))
        if "first.X" in stored:
            run.first = Table(*(stored[f"first.{name}"] for name in FIRST))
        if content["calibrated"]:
            run.calibration = Calibration(stored["factor"], None, stored["scores"])
    elif content["calibrated"]:
        run.calibration = calibrate(run.held_out)
    return run


def _default_kernel(smoothness: str, run: SolvedRun) -> Kernel:
    require(smoothness in ("inf", *map(str, MATERN_ORDERS)), "smoothness of the kernel")
    return radial_kernel(run.n_features, float(smoothness)).to(run.dtype)


def _sites_shapes(
    stored: dict[str, np.ndarray], calibrated: bool, n_features: int, n_outputs: int
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of what only models of other likelihoods keep."""
    k = len(stored["new.weights"])
    shapes: dict[str, tuple[int, ...]] = {"new.weights": (k,)}
    for name in ("mean", "variance", "y"):
        shapes[f"new.{name}"] = (k, n_outputs)
    if calibrated:
        shapes["factor"] = (n_outputs,)
        shapes["scores"] = (len(stored["scores"]), n_outputs)
    if "first.X" in stored:
        n = len(stored["first.X"])
        shapes.update({"first.X": (n, n_features), "first.weights": (n,)})
        shapes.update({f"first.{name}": (n, n_outputs) for name in ("Y", "known")})
    return shapes


def _count(value: Any) -> int:
    require(type(value) is int and value >= 0, "number of steps or rows")
    return int(value)


def _settings(content: dict[str, Any]) -> Settings:
    """Return the settings; what the file does not know has its default."""
    defaults = {field.name: field.default for field in fields(Settings)}
    for name, value in content.items():
        same = isinstance(value, int | float) == isinstance(defaults[name], int | float)
        missing = value is None and name == "natural_rate"
        require(same or missing, f"setting {name}")
    return Settings(**content)


def _check_sizes(
    content: dict[str, Any], posterior: Mapping[str, Tensor], n_features: int, n_outputs: int
) -> None:
    """Compare the sizes in the JSON with the tensors that are there, before anything is built."""
    n_mean, n_cov = content["n_mean_basis"], content["n_cov_basis"]
    locations = {"mean_basis": n_mean - n_cov * content["partially_shared"], "cov_basis": n_cov}
    shapes: dict[str, tuple[int, ...]] = {
        "mean_coefficients": (n_mean, n_outputs),
        "cov_factor": (n_outputs, n_cov, n_cov),
    }
    family = content.get("family", "decoupled")
    if family != "decoupled":
        locations = {"basis": n_cov}
        shapes = {"shift": (n_cov, n_outputs), "precision": (n_outputs, n_cov, n_cov)}
        if "reference" in posterior:
            shapes |= {"reference": (n_cov, n_cov), "reference_rho": (n_outputs,)}
    if family in ("hybrid", "orthogonal"):
        locations["residual_basis"] = n_mean - n_cov
        shapes["residual_coefficients"] = (n_mean - n_cov, n_outputs)
    for name, count in locations.items():
        shapes[f"{name}.locations"] = (count, n_features)
    for name, shape in shapes.items():
        require(tuple(posterior[name].shape) == shape, f"size of {name}")


def _fill(run: State, content: dict[str, Any], groups: Groups) -> None:
    """Grow an empty model to its stored sizes and put the stored values in."""
    n_mean, n_cov = content["n_mean_basis"], content["n_cov_basis"]
    rows = torch.zeros(1, run.n_features, dtype=run.dtype, device=run.device)
    run.posterior.add(rows.expand(n_mean, -1), rows.expand(n_cov, -1))
    for name, module in (("posterior", run.posterior), ("likelihood", run.likelihood)):
        stored = groups.get(name, {})
        set_state(module, stored, name)
        right = all(value.dtype == run.dtype for value in module.parameters())
        require(right, f"type of the {name}'s parameters")


def _set_moments(learner: GradientLearner, stored: Mapping[str, Tensor]) -> None:
    """Give Adam its memory back; step counts stay on the CPU, as Adam wants them."""
    parameters = dict(learner.model.named_parameters())
    moments = {}
    for key, value in stored.items():
        name, _, kind = key.rpartition(".")
        parameter = parameters[name]
        if kind == "step":
            require(value.shape == (), f"shape of {key}")
            moments[key] = value
        else:
            same = value.shape == parameter.shape and value.dtype == parameter.dtype
            require(same, f"shape and type of {key}")
            moments[key] = value.to(parameter.device)
    learner.load_moments(moments)


def _scaler(stored: Mapping[str, Tensor]) -> Standardizer:
    centre, scale, varies = (stored[name].numpy() for name in ("centre", "scale", "varies"))
    require(centre.shape == scale.shape == varies.shape == (centre.size,), "shape of a scaler")
    require(varies.dtype == np.bool_, "type of a scaler")
    scaler = Standardizer(np.zeros((1, centre.size)))
    scaler.centre, scaler.scale, scaler.varies = centre, scale, varies
    return scaler


def _warp(stored: Mapping[str, Tensor], n_features: int) -> Warp:
    parts = [stored[name].numpy() for name in ("powers", "centre", "scale")]
    right = all(part.shape == (n_features,) and part.dtype == np.float64 for part in parts)
    require(right, "shape and type of the warp")
    return Warp(*parts)


def _first_rows(
    stored: Mapping[str, Tensor], n_features: int, n_outputs: int
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
    """Return the kept rows, without the numbers they may have had in a table that is closed now."""
    rows: list[tuple[np.ndarray, np.ndarray, np.ndarray | None]] = []
    for k in range(len(stored) // 2):
        X, Y = (
            stored[name].numpy() if name in stored else stored[f"{name}.T"].numpy().T
            for name in (f"{k}.x", f"{k}.y")
        )
        fits = X.shape == (len(X), n_features) and Y.shape == (len(X), n_outputs)
        require(fits, "shape of the first rows")
        rows.append((X, Y, None))
    return rows


def _generator(state: dict[str, Any]) -> np.random.Generator:
    bits = np.random.PCG64(0)
    bits.state = state  # type: ignore[assignment]
    return np.random.Generator(bits)


def require(right: bool, what: str) -> None:
    """Raise a ValueError about what does not fit."""
    if not right:
        raise ValueError(f"its contents do not fit together (the {what})")
