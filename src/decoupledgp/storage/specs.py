"""Kernels and likelihoods as JSON: a class from a table, its arguments and constraints; never code.

The values of parameters, bounds and other buffers are not in the JSON: `state` gives them as
tensors, and `rebuild` puts them back bit for bit. GPyTorch's priors on hyper-parameters are not
stored: nothing here learns from them, and a kernel passed to `rebuild` may bring its own.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from gpytorch import constraints, kernels, likelihoods
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.priors import Prior
from gpytorch.settings import num_gauss_hermite_locs
from gpytorch.utils.quadrature import GaussHermiteQuadrature1D
from gpytorch.utils.transforms import inv_sigmoid, inv_softplus
from torch import Tensor, nn

__all__ = ["describe", "freeze", "frozen", "layout", "rebuild", "set_state", "state"]

Spec = dict[str, Any]


class Plain(NamedTuple):
    """A class that can be rebuilt from JSON."""

    cls: type[nn.Module]
    parameters: Mapping[str, int] = {}
    """Its own parameters, and how many of their last dimensions are not batch dimensions."""
    options: tuple[str, ...] = ()
    """Arguments of the constructor that are attributes of the same name."""


_KERNEL = ("active_dims",)
_ARD = ("ard_num_dims", "active_dims")
_LENGTHSCALE = {"raw_lengthscale": 2}
_PERIOD = {"raw_period_length": 2}

PLAIN = {
    "RBF": Plain(kernels.RBFKernel, _LENGTHSCALE, _ARD),
    "Matern": Plain(kernels.MaternKernel, _LENGTHSCALE, ("nu", *_ARD)),
    "RQ": Plain(kernels.RQKernel, _LENGTHSCALE | {"raw_alpha": 1}, _ARD),
    "Periodic": Plain(kernels.PeriodicKernel, _LENGTHSCALE | _PERIOD, _ARD),
    "PiecewisePolynomial": Plain(kernels.PiecewisePolynomialKernel, _LENGTHSCALE, ("q", *_ARD)),
    "Linear": Plain(kernels.LinearKernel, {"raw_variance": 2}, _ARD),
    "Polynomial": Plain(kernels.PolynomialKernel, {"raw_offset": 1}, ("power", *_KERNEL)),
    "Cosine": Plain(kernels.CosineKernel, _PERIOD, _KERNEL),
    "Constant": Plain(kernels.ConstantKernel, {"raw_constant": 1}, _KERNEL),
    "Scale": Plain(kernels.ScaleKernel, {"raw_outputscale": 0}, _KERNEL),
    "Additive": Plain(kernels.AdditiveKernel),
    "Product": Plain(kernels.ProductKernel),
    "Gaussian": Plain(likelihoods.GaussianLikelihood, {"noise_covar.raw_noise": 1}),
    "StudentT": Plain(likelihoods.StudentTLikelihood, {"raw_noise": 1, "raw_deg_free": 1}),
    "Laplace": Plain(likelihoods.LaplaceLikelihood, {"raw_noise": 1}),
    "Beta": Plain(likelihoods.BetaLikelihood, {"raw_scale": 1}),
    "Bernoulli": Plain(likelihoods.BernoulliLikelihood),
}
if hasattr(likelihoods, "PoissonLikelihood"):  # not in every GPyTorch that we allow
    PLAIN["Poisson"] = Plain(likelihoods.PoissonLikelihood)

CONSTRAINTS: dict[str, tuple[type[nn.Module], tuple[str, ...]]] = {
    "Positive": (constraints.Positive, ()),
    "GreaterThan": (constraints.GreaterThan, ("lower_bound",)),
    "LessThan": (constraints.LessThan, ("upper_bound",)),
    "Interval": (constraints.Interval, ("lower_bound", "upper_bound")),
}
"""Constraints and the bounds that their constructors take."""

Transform = Callable[[Tensor], Tensor] | None
_SOFTPLUS = nn.Softplus()
TRANSFORMS: dict[str, tuple[Transform, Transform]] = {
    "none": (None, None),
    "exp": (torch.exp, torch.log),
    "sigmoid": (torch.sigmoid, inv_sigmoid),
    "softplus": (_SOFTPLUS, inv_softplus),
    "functional.softplus": (nn.functional.softplus, inv_softplus),
}

_PLAIN_NAMES = {plain.cls: name for name, plain in PLAIN.items()}
_CONSTRAINT_NAMES = {cls: name for name, (cls, _) in CONSTRAINTS.items()}


def describe(module: nn.Module) -> Spec:
    """Return a kernel or likelihood as JSON; one that is not in the tables has the type "custom".

    Parameters that two parts share make it custom too, since a rebuilt one would not share them.
    """
    tied = len(list(module.named_parameters(remove_duplicate=False))) > len(
        list(module.parameters())
    )
    try:
        spec = _describe(module)
        plain = not tied and layout(_build(spec)) == layout(module)
    except (KeyError, ValueError):  # not in the tables; bounds that do not survive float32
        plain = False
    if not plain:
        spec = {"type": "custom", "class": _unknown_class(module), "parts": _parts(module)}
    return spec | {"frozen": frozen(module)}


def rebuild(
    spec: Spec, stored: Mapping[str, Tensor], given: nn.Module | None, what: str
) -> nn.Module:
    """Return the module that `describe` and `state` saw, or a copy of `given` with its values.

    Raises ValueError if that is impossible, or if `given` has another structure.
    """
    custom = spec["type"] == "custom"
    if custom and given is None:
        raise ValueError(
            f"its {what} cannot be rebuilt from a file without code, because of {spec['class']}; "
            f"pass one of the same structure to load(..., {what}=...)"
        )
    if not custom and _size(spec) > sum(value.numel() for value in stored.values()):
        raise ValueError(f"its {what} claims to be larger than what is stored of it")
    module = _build(spec) if given is None else copy.deepcopy(given)
    if given is not None:
        _require_same_parts(spec["parts"] if custom else _parts(_build(spec)), module, what)
    set_state(module, stored, what)
    freeze(module, spec["frozen"])
    return module


def state(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name, not copied; without priors, with quadrature nodes."""
    parts = dict(module.named_modules(remove_duplicate=False))
    priors = tuple(f"{name}." for name, part in parts.items() if isinstance(part, Prior))
    found = {
        name: value
        for name, value in module.state_dict(keep_vars=True).items()
        if not name.startswith(priors)
    }
    for name, part in parts.items():
        if isinstance(part, GaussHermiteQuadrature1D):  # its tensors are no buffers
            found |= {f"{name}.locations": part.locations, f"{name}.weights": part.weights}
    for name, value in found.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"{name} of {type(module).__name__} is no tensor and cannot be stored")
    return found


def set_state(module: nn.Module, stored: Mapping[str, Tensor], what: str) -> None:
    """Put values that `state` returned back, type included; names and shapes must agree."""
    expected = layout(module)
    for name in sorted(expected.keys() | stored.keys()):
        here = expected.get(name, "nothing")
        there = _layout(stored[name]) if name in stored else "nothing"
        if here != there:
            raise ValueError(
                f"its {what} does not fit: {name} is {here}, but the file holds {there}"
            )
    for name, value in state(module).items():
        value.data = stored[name].to(value.device)


def layout(module: nn.Module) -> dict[str, str]:
    """Return the kind and shape of everything in `state`, in words."""
    return {name: _layout(value) for name, value in state(module).items()}


def frozen(module: nn.Module) -> list[str]:
    """Return the names of the parameters that are not learnt."""
    return [name for name, value in module.named_parameters() if not value.requires_grad]


def freeze(module: nn.Module, names: list[str]) -> None:
    """Make these parameters, and no others, not learnt."""
    for name, value in module.named_parameters():
        value.requires_grad_(name not in names)


def _describe(module: Any) -> Spec:
    """Return the spec of a plain module; KeyError if it or a part of it is none."""
    name = _PLAIN_NAMES[type(module)]
    plain = PLAIN[name]
    spec: Spec = {"type": name}
    for option in plain.options:
        value = getattr(module, option)
        spec[option] = value.tolist() if isinstance(value, Tensor) else value
    for parameter, own in plain.parameters.items():
        shape = module.get_parameter(parameter).shape
        spec.setdefault("batch_shape", list(shape[: len(shape) - own]))
        constraint = module.constraint_for_parameter_name(parameter)
        spec.setdefault("constraints", {})[parameter] = _describe_constraint(constraint)
    if hasattr(module, "quadrature"):
        spec["n_nodes"] = module.quadrature.num_locs
    children = [module.base_kernel] if name == "Scale" else getattr(module, "kernels", ())
    if children:
        spec["kernels"] = [_describe(child) for child in children]
    return spec


def _build(spec: Spec) -> nn.Module:
    """Return the module of a plain spec, its values still GPyTorch's defaults."""
    plain = PLAIN[spec["type"]]
    arguments = {name: spec[name] for name in plain.options if spec[name] is not None}
    if plain.parameters:
        arguments["batch_shape"] = torch.Size(spec["batch_shape"])
    children = [_build(child) for child in spec.get("kernels", [])]
    with num_gauss_hermite_locs(spec["n_nodes"]) if "n_nodes" in spec else nullcontext():
        module = plain.cls(*children, **arguments)
    for name in plain.parameters:
        owner, _, parameter = name.rpartition(".")
        constraint = _build_constraint(spec["constraints"][name])
        module.get_submodule(owner).register_constraint(parameter, constraint)  # type: ignore[operator]
    return module


def _describe_constraint(constraint: Any) -> Spec:
    name = _CONSTRAINT_NAMES[type(constraint)]
    bounds = [getattr(constraint, bound).tolist() for bound in CONSTRAINTS[name][1]]
    return {"type": name, "bounds": bounds, "transform": _transform_name(constraint)}


def _build_constraint(spec: Spec) -> nn.Module:
    cls, bounds = CONSTRAINTS[spec["type"]]
    transform, inverse = TRANSFORMS[spec["transform"]]
    arguments = dict(zip(bounds, spec["bounds"], strict=True))
    return cls(**arguments, transform=transform, inv_transform=inverse)


def _transform_name(constraint: Any) -> str:
    transform, inverse = constraint._transform, constraint._inv_transform
    if transform is None:
        return "none"
    if type(transform) is nn.Softplus and (transform.beta, transform.threshold) == (1, 20):
        transform = _SOFTPLUS  # a copied kernel has a copy of it
    for name, pair in TRANSFORMS.items():
        if transform is pair[0] and inverse is pair[1]:
            return name
    raise KeyError(transform)


def _size(spec: Spec) -> int:
    """Return how many values a plain spec asks for, at least, without building it."""
    sizes = [*spec.get("batch_shape", []), spec.get("ard_num_dims") or 1]
    nodes = spec.get("n_nodes", 0)
    if not all(type(size) is int and size >= 0 for size in (*sizes, nodes)):
        raise ValueError(f"{sizes} are no sizes")
    own = math.prod(sizes) if PLAIN[spec["type"]].parameters else 0
    return own + 2 * nodes + sum(_size(child) for child in spec.get("kernels", []))


def _unknown_class(module: nn.Module) -> str:
    """Return the first kernel or likelihood that is not in the table, else the whole, by name."""
    models = [part for part in module.modules() if isinstance(part, Kernel | Likelihood)]
    cls = next((type(part) for part in models if type(part) not in _PLAIN_NAMES), type(module))
    return f"{cls.__module__}.{cls.__qualname__}"


def _parts(module: nn.Module) -> dict[str, str]:
    """Return the class of every part that is no prior."""
    return {
        name: type(part).__qualname__
        for name, part in module.named_modules(remove_duplicate=False)
        if not isinstance(part, Prior)
    }


def _require_same_parts(expected: dict[str, str], module: nn.Module, what: str) -> None:
    found = _parts(module)
    for name in sorted(expected.keys() | found.keys()):
        here, there = found.get(name, "nothing"), expected.get(name, "nothing")
        if here != there:
            where = (
                f"the {what} you passed has {here} at {name!r}" if name else f"you passed {here}"
            )
            raise ValueError(f"{where}, but the model's {what} has {there} there")


def _layout(value: Tensor) -> str:
    kind = "real" if value.is_floating_point() else str(value.dtype).removeprefix("torch.")
    return f"{kind} {tuple(value.shape)}"
