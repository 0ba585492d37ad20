"""Models in files: a safetensors file with all tensors, and everything else as JSON in its header.

Nothing in such a file can run code, and no byte of it can change unnoticed: a SHA-256 of the whole
file, taken with zeros in its own place, stands in the header. (It guards against accidents, not
against an author who means harm; for that, sizes are checked before memory is asked for.)

Metadata of the header: `format`, `format_version`, `content` (JSON), `sha256`. Tensors are named
`group/name`, with the groups posterior, likelihood, adam, x_scaler, y_scaler, first_rows, solved, and
start_kernel and start_likelihood: the constructor's, from which a stream in its first rows begins
again.
"""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from safetensors.torch import load as tensors_from_bytes
from torch import Tensor

import decoupledgp
from decoupledgp.data import Standardizer
from decoupledgp.estimators.batch_state import BatchState
from decoupledgp.estimators.run import RUNS, Run
from decoupledgp.estimators.settings import Settings
from decoupledgp.estimators.solved import Sizes, SolvedRun
from decoupledgp.estimators.state import State
from decoupledgp.learners import GradientLearner
from decoupledgp.solvers import calibrate
from decoupledgp.storage.file import UNFIT, ModelFileError, pack, replace_file, unpack
from decoupledgp.storage.specs import describe, freeze, frozen, rebuild, set_state, state

if TYPE_CHECKING:
    from decoupledgp.estimators import GPRegressor

__all__ = ["load", "save"]

DTYPES = {"float32": torch.float32, "float64": torch.float64}

Model = TypeVar("Model", bound="GPRegressor")


def save(model: GPRegressor, path: str | os.PathLike[str]) -> None:
    """Write a fitted model to one file, which replaces an older one only when it is complete.

    Left out are the callbacks, a `random_state` that is no integer, GPyTorch's priors on
    hyper-parameters, and a kernel or likelihood put in by `set_params` since the model was fitted.
    """
    path = Path(os.path.realpath(path))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "a folder; add a file name to save under", str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(
            errno.ENOENT, "there is no such folder to save in; create it first", str(path.parent)
        )
    data = pack(_tensors(model), json.dumps(_content(model), default=_plain))
    try:
        replace_file(path, data)
    except OSError as error:
        raise OSError(error.errno, f"cannot save here ({error.strerror})", str(path)) from error


def load(
    cls: type[Model],
    path: str | os.PathLike[str],
    *,
    kernel: Kernel | None = None,
    likelihood: Likelihood | None = None,
) -> Model:
    """Read a model that `save` wrote: it predicts and goes on learning exactly as the saved one.

    A kernel or likelihood that is none of GPyTorch's plain ones (see `specs.PLAIN`) must be passed
    again; its parameters come from the file. Raises ModelFileError if the file cannot be used.
    """
    try:
        with open(path, "rb") as file:
            data, content = unpack(file)
        if content["class"] != cls.__name__:
            raise ModelFileError(f"it holds a {content['class']}, not a {cls.__name__}")
        groups = _grouped(tensors_from_bytes(data))
        return _restore(cls, content, groups, {"kernel": kernel, "likelihood": likelihood})
    except ValueError as error:
        raise ModelFileError(f"cannot load {os.fspath(path)}: {error}") from error
    except UNFIT as error:
        reason = f"its contents do not fit together ({type(error).__name__}: {error})"
        raise ModelFileError(f"cannot load {os.fspath(path)}: {reason}") from error


# ---- from a model to JSON and tensors ----


def _content(model: GPRegressor) -> dict[str, Any]:
    """Return everything about a model that is no tensor."""
    run = model._run
    params = model.get_params(deep=False)
    if not isinstance(params["random_state"], int | np.integer):
        params["random_state"] = None
    names = getattr(model, "feature_names_in_", None)
    return {
        "package_version": decoupledgp.__version__,
        "class": type(model).__name__,
        "params": {
            name: value
            for name, value in params.items()
            if name not in ("callbacks", "kernel", "likelihood")
        },
        "kernel": None if run.given_kernel is None else describe(run.given_kernel),
        "likelihood": None if run.given_likelihood is None else describe(run.given_likelihood),
        "n_features_in_": model.n_features_in_,
        "feature_names_in_": None if names is None else list(names),
        "y_is_flat": model._y_is_flat,
        "run": _run_content(run),
    }


def _run_content(run: State) -> dict[str, Any]:
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
            "calibrated": run.calibration is not None,
            "frozen": frozen(run.modules()),
            "rng": run.rng.bit_generator.state,
        }
    assert isinstance(run, Run)
    return {
        **content,
        "family": run.family,
        "settings": asdict(run.settings),
        "frozen": frozen(run.online.learner.model),
        "online_iteration": run.online.iteration,
        "rng": run.rng.bit_generator.state,
    }


def _tensors(model: GPRegressor) -> dict[str, Tensor]:
    """Return all tensors as `group/name`, on the CPU, each with memory of its own."""
    run = model._run
    groups: dict[str, Mapping[str, Tensor | np.ndarray]] = {
        "posterior": state(run.posterior),
        "likelihood": state(run.likelihood),
        "x_scaler": vars(run.x_scaler),
        "y_scaler": vars(run.y_scaler),
        "start_kernel": {} if run.given_kernel is None else state(run.given_kernel),
        "start_likelihood": {} if run.given_likelihood is None else state(run.given_likelihood),
    }
    if isinstance(run, SolvedRun):
        groups["solved"] = _solved_tensors(run)
    if isinstance(run, Run):
        groups["adam"] = run.online.learner.moments()
        groups["first_rows"] = _first_rows_tensors(run)
    return {
        f"{group}/{name}": _own(value)
        for group, values in groups.items()
        for name, value in values.items()
    }


def _solved_tensors(run: SolvedRun) -> dict[str, np.ndarray | Tensor]:
    return {
        "centres": run.cells.centres,
        "targets": run.cells.targets,
        "counts": run.cells.counts,
        "residuals": run.residuals,
        "latent": run.latent,
        "cov_bound": run.cov_bound,
    }


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


def _own(value: Tensor | np.ndarray) -> Tensor:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.array(value, order="C"))
    return value.detach().cpu().clone(memory_format=torch.contiguous_format)


def _plain(value: Any) -> Any:
    """Return a NumPy number as Python's, for JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} cannot be saved")


# ---- from JSON and tensors to a model ----

Groups = dict[str, dict[str, Tensor]]


def _restore(
    cls: type[Model], content: dict[str, Any], groups: Groups, given: dict[str, Any]
) -> Model:
    start: dict[str, Any] = {}
    for what, module in given.items():
        spec = content[what]
        if spec is None and module is not None:
            raise ValueError(f"the model has the default {what}; leave {what}= out")
        stored = groups.get(f"start_{what}", {})
        start[what] = None if spec is None else rebuild(spec, stored, module, what)
    if not _is_available(content["run"]["device"]):
        device, content["run"]["device"] = content["run"]["device"], "cpu"
        content["params"]["device"] = None
        warnings.warn(f"no device {device!r} here; the model is on the CPU", stacklevel=4)
    model = cls(**content["params"], **start)
    model._validate_params()
    model.n_features_in_ = content["n_features_in_"]
    names = content["feature_names_in_"]
    if names is not None:
        _require(len(names) == model.n_features_in_, "number of feature names")
        model.feature_names_in_ = np.array(names, dtype=object)
    model._y_is_flat = content["y_is_flat"]
    model._run = _restore_run(content["run"], groups, **start)
    _require(model._run.n_features == model.n_features_in_, "number of features")
    return model


def _restore_run(content: dict[str, Any], groups: Groups, **start: Any) -> State:
    x_scaler, y_scaler = _scaler(groups["x_scaler"]), _scaler(groups["y_scaler"])
    n_features, n_outputs = len(x_scaler.centre), len(y_scaler.centre)
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
    first = groups.get("first_rows", {})
    run._first_rows = _first_rows(first, known["n_features"], known["n_outputs"])
    return run


def _batch_state(content: dict[str, Any], groups: Groups, **known: Any) -> BatchState:
    device = torch.device(content["device"])
    run = BatchState(basis=content["basis"], device=device, **known)
    _fill(run, content, groups)
    return run


def _solved_run(content: dict[str, Any], groups: Groups, **known: Any) -> SolvedRun:
    run = SolvedRun(Sizes(**content["sizes"]), rng=_generator(content["rng"]), **known)
    _fill(run, content, groups)
    freeze(run.modules(), content["frozen"])
    stored = {name: value.numpy() for name, value in groups["solved"].items()}
    m, k = len(stored["counts"]), len(stored["residuals"])
    n_features, n_outputs = known["n_features"], known["n_outputs"]
    shapes = {
        "centres": (m, n_features),
        "targets": (m, n_outputs),
        "counts": (m,),
        "residuals": (k, n_outputs),
        "latent": (k, n_outputs),
        "cov_bound": (n_outputs,),
    }
    for name, shape in shapes.items():
        right = stored[name].shape == shape and stored[name].dtype == np.float64
        _require(right, f"shape and type of {name}")
    _require(m == run.posterior.n_mean, "number of cells")
    cells = run.cells
    cells.centres, cells.targets, cells.counts = (
        stored[name] for name in ("centres", "targets", "counts")
    )
    run.residuals, run.latent = stored["residuals"], stored["latent"]
    run.cov_bound = groups["solved"]["cov_bound"]
    run.solved_rows, run.learnt_rows, run.joined_rows = (
        _count(content[name]) for name in ("solved_rows", "learnt_rows", "joined_rows")
    )
    if content["calibrated"]:
        run.calibration = calibrate(run.residuals, run.latent)
    return run


def _count(value: Any) -> int:
    _require(type(value) is int and value >= 0, "number of steps or rows")
    return int(value)


def _settings(content: dict[str, Any]) -> Settings:
    """Return the settings; what the file does not know has its default."""
    defaults = {field.name: field.default for field in fields(Settings)}
    for name, value in content.items():
        same = isinstance(value, int | float) == isinstance(defaults[name], int | float)
        _require(same or defaults[name] is None, f"setting {name}")
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
    if family in ("hybrid", "orthogonal"):
        locations["residual_basis"] = n_mean - n_cov
        shapes["residual_coefficients"] = (n_mean - n_cov, n_outputs)
    for name, count in locations.items():
        shapes[f"{name}.locations"] = (count, n_features)
    for name, shape in shapes.items():
        _require(tuple(posterior[name].shape) == shape, f"size of {name}")


def _fill(run: State, content: dict[str, Any], groups: Groups) -> None:
    """Grow an empty model to its stored sizes and put the stored values in."""
    n_mean, n_cov = content["n_mean_basis"], content["n_cov_basis"]
    rows = torch.zeros(1, run.n_features, dtype=run.dtype, device=run.device)
    run.posterior.add(rows.expand(n_mean, -1), rows.expand(n_cov, -1))
    for name, module in (("posterior", run.posterior), ("likelihood", run.likelihood)):
        stored = groups.get(name, {})
        set_state(module, stored, name)
        right = all(value.dtype == run.dtype for value in module.parameters())
        _require(right, f"type of the {name}'s parameters")


def _set_moments(learner: GradientLearner, stored: Mapping[str, Tensor]) -> None:
    """Give Adam its memory back; step counts stay on the CPU, as Adam wants them."""
    parameters = dict(learner.model.named_parameters())
    moments = {}
    for key, value in stored.items():
        name, _, kind = key.rpartition(".")
        parameter = parameters[name]
        if kind == "step":
            _require(value.shape == (), f"shape of {key}")
            moments[key] = value
        else:
            same = value.shape == parameter.shape and value.dtype == parameter.dtype
            _require(same, f"shape and type of {key}")
            moments[key] = value.to(parameter.device)
    learner.load_moments(moments)


def _scaler(stored: Mapping[str, Tensor]) -> Standardizer:
    centre, scale, varies = (stored[name].numpy() for name in ("centre", "scale", "varies"))
    _require(centre.shape == scale.shape == varies.shape == (centre.size,), "shape of a scaler")
    _require(varies.dtype == np.bool_, "type of a scaler")
    scaler = Standardizer(np.zeros((1, centre.size)))
    scaler.centre, scaler.scale, scaler.varies = centre, scale, varies
    return scaler


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
        _require(fits, "shape of the first rows")
        rows.append((X, Y, None))
    return rows


def _generator(state: dict[str, Any]) -> np.random.Generator:
    bits = np.random.PCG64(0)
    bits.state = state  # type: ignore[assignment]
    return np.random.Generator(bits)


def _is_available(device: str) -> bool:
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError):  # a name or a kind of device that PyTorch lacks here
        return False
    return True


def _require(right: bool, what: str) -> None:
    if not right:
        raise ValueError(f"its contents do not fit together (the {what})")


def _grouped(tensors: Mapping[str, Tensor]) -> Groups:
    """Return tensors by group; copied, so that each has aligned and writable memory."""
    groups: Groups = {}
    for key, value in tensors.items():
        group, _, name = key.partition("/")
        groups.setdefault(group, {})[name] = value.clone()
    return groups
