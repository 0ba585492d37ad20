"""Models in files: a safetensors file with all tensors, and everything else as JSON in its header.

Nothing in such a file can run code, and no byte of it can change unnoticed: a SHA-256 of the whole
file, taken with zeros in its own place, stands in the header. (It guards against accidents, not
against an author who means harm; for that, sizes are checked before memory is asked for.)

Metadata of the header: `format`, `format_version`, `content` (JSON), `sha256`. Tensors are named
`group/name`, with the groups posterior, likelihood, adam, x_scaler, y_scaler, first_rows, solved, warp and
start_kernel and start_likelihood: the constructor's, from which a stream in its first rows begins
again.
"""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from safetensors.torch import load as tensors_from_bytes
from torch import Tensor

import decoupledgp
from decoupledgp.estimators.solved import SolvedRun
from decoupledgp.storage.file import UNFIT, ModelFileError, pack, replace_file, unpack
from decoupledgp.storage.runs import Groups, require, restore_run, run_content, run_tensors
from decoupledgp.storage.specs import describe, rebuild

if TYPE_CHECKING:
    from decoupledgp.estimators import GPRegressor

__all__ = ["load", "save"]

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
        "kernel": _kernel_content(model),
        "likelihood": None if run.given_likelihood is None else describe(run.given_likelihood),
        "n_features_in_": model.n_features_in_,
        "feature_names_in_": None if names is None else list(names),
        "y_is_flat": model._y_is_flat,
        "run": run_content(run),
    }


def _kernel_content(model: GPRegressor) -> Any:
    """Return the kernel at the time of fitting: how to build it, None, or the word that stands for one."""
    run = model._run
    if run.given_kernel is not None:
        return describe(run.given_kernel)
    if isinstance(run, SolvedRun):
        return "auto" if run.sizes.choose_smoothness else None
    word = model.get_params(deep=False)["kernel"]  # by gradients "auto" and None are both SE-ARD
    return word if isinstance(word, str) else None


def _tensors(model: GPRegressor) -> dict[str, Tensor]:
    """Return all tensors as `group/name`, on the CPU, each with memory of its own."""
    return {
        f"{group}/{name}": _own(value)
        for group, values in run_tensors(model._run).items()
        for name, value in values.items()
    }


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


def _restore(
    cls: type[Model], content: dict[str, Any], groups: Groups, given: dict[str, Any]
) -> Model:
    start: dict[str, Any] = {}
    for what, module in given.items():
        spec = content[what]
        is_default = spec is None or isinstance(spec, str)
        if is_default and module is not None:
            raise ValueError(f"the model has the default {what}; leave {what}= out")
        stored = groups.get(f"start_{what}", {})
        start[what] = None if is_default else rebuild(spec, stored, module, what)
    if not _is_available(content["run"]["device"]):
        device, content["run"]["device"] = content["run"]["device"], "cpu"
        content["params"]["device"] = None
        warnings.warn(f"no device {device!r} here; the model is on the CPU", stacklevel=4)
    words = {what: content[what] for what in start if isinstance(content[what], str)}
    model = cls(**content["params"], **{**start, **words})
    model._validate_params()
    model.n_features_in_ = content["n_features_in_"]
    names = content["feature_names_in_"]
    if names is not None:
        require(len(names) == model.n_features_in_, "number of feature names")
        model.feature_names_in_ = np.array(names, dtype=object)
    model._y_is_flat = content["y_is_flat"]
    model._run = restore_run(content["run"], groups, **start)
    require(model._run.n_features == model.n_features_in_, "number of features")
    return model


def _is_available(device: str) -> bool:
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError):  # a name or a kind of device that PyTorch lacks here
        return False
    return True


def _grouped(tensors: Mapping[str, Tensor]) -> Groups:
    """Return tensors by group; copied, so that each has aligned and writable memory."""
    groups: Groups = {}
    for key, value in tensors.items():
        group, _, name = key.partition("/")
        groups.setdefault(group, {})[name] = value.clone()
    return groups
