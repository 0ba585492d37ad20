"""Files that are no models, or no longer, are refused."""

from __future__ import annotations

import json

import pytest
import torch
from gpytorch import kernels as gk
from gpytorch import likelihoods as gl
from safetensors import safe_open
from safetensors.torch import save_file

from decoupledgp import DecoupledGPRegressor
from decoupledgp.storage import ModelFileError, file
from decoupledgp.storage import model as contents
from saved_models import D, fitted


@pytest.fixture(scope="module")
def small_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("small") / "model"
    fitted(n_mean_basis=4, n_cov_basis=2, max_iter=1).save(path)
    return path.read_bytes()


def refused(path, match="cannot load"):
    with pytest.raises(ModelFileError, match=match) as caught:
        DecoupledGPRegressor.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("mask", [0x01, 0x29])  # 0x29 turns a blank into a tab: JSON all the same
def test_any_changed_byte_is_noticed(mask, small_file, tmp_path):
    path = tmp_path / "model"
    path.write_bytes(small_file)
    DecoupledGPRegressor.load(path)
    with open(path, "r+b", buffering=0) as file:
        for k, byte in enumerate(small_file):
            file.seek(k)
            file.write(bytes([byte ^ mask]))
            refused(path)
            file.seek(k)
            file.write(bytes([byte]))
    DecoupledGPRegressor.load(path)


def test_truncated_or_lengthened_files(small_file, tmp_path):
    path = tmp_path / "model"
    n = len(small_file)
    for length in {0, 1, 7, 8, 9, n - 1, n - 8, *range(0, n, 97)}:
        path.write_bytes(small_file[:length])
        refused(path, "empty" if length == 0 else "no decoupledgp model file|damaged|cut short")
    path.write_bytes(small_file + b"\0")
    refused(path, "damaged")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"some text, longer than eight bytes",
        b"\x80\x04\x95" + bytes(40),
        (2**63).to_bytes(8, "little") + bytes(50),
        (10).to_bytes(8, "little") + b"[[[[[[[[[[",
        (200_000).to_bytes(8, "little") + b"[" * 200_000,
        (2).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (2).to_bytes(8, "little") + b"\xff\xff",
    ],
)
def test_files_that_are_no_models(data, tmp_path):
    (tmp_path / "other").write_bytes(data)
    refused(tmp_path / "other")


def test_other_safetensors_files(tmp_path):
    for metadata in (None, {"format": "pt"}, {"format": "decoupledgp"}):
        save_file({"weight": torch.ones(3)}, tmp_path / "other", metadata=metadata)
        refused(tmp_path / "other", "no decoupledgp model file")


def test_newer_format_is_named_before_anything_else_is_read(tmp_path):
    metadata = {"format": "decoupledgp", "format_version": "2", "content": "{not JSON"}
    save_file({"weight": torch.ones(3)}, tmp_path / "newer", metadata=metadata)
    refused(tmp_path / "newer", "format version 2.*newer decoupledgp")


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        DecoupledGPRegressor.load(tmp_path / "nowhere")
    with pytest.raises(OSError, match=str(tmp_path)):
        DecoupledGPRegressor.load(tmp_path)


def test_other_class(tmp_path):
    class Other(DecoupledGPRegressor):
        pass

    fitted().save(tmp_path / "model")
    with pytest.raises(ModelFileError, match="holds a DecoupledGPRegressor, not a Other"):
        Other.load(tmp_path / "model")


@pytest.fixture(scope="module")
def forge():
    """Writes a file whose digest is right but whose contents a hostile `change` has been at."""
    model = fitted(kernel=gk.RBFKernel(ard_num_dims=D), likelihood=gl.StudentTLikelihood())

    def write(path, change):
        content = json.loads(json.dumps(contents._content(model), default=contents._plain))
        tensors = contents._tensors(model)
        change(content, tensors)
        path.write_bytes(file.pack(tensors, json.dumps(content)))

    return write


HUGE = 10**12
FORGERIES = {
    "mean basis": lambda c, t: c["run"].update(n_mean_basis=HUGE),
    "cov basis": lambda c, t: c["run"].update(n_cov_basis=HUGE),
    "ard": lambda c, t: c["kernel"].update(ard_num_dims=HUGE),
    "batch": lambda c, t: c["kernel"].update(batch_shape=[HUGE, HUGE]),
    "strings": lambda c, t: c["kernel"].update(batch_shape=["a", HUGE]),
    "nodes": lambda c, t: c["likelihood"].update(n_nodes=10**6),
    "kernel class": lambda c, t: c["kernel"].update({"type": "os.system"}),
    "custom class": lambda c, t: c["kernel"].update({"type": "custom", "class": "os.system"}),
    "transform": lambda c, t: c["kernel"]["constraints"]["raw_lengthscale"].update(
        transform="eval"
    ),
    "no run": lambda c, t: c.pop("run"),
    "dtype": lambda c, t: c["run"].update(dtype="load"),
    "other dtype": lambda c, t: c["run"].update(dtype="float64"),
    "argument": lambda c, t: c["params"].update(surprise=1),
    "argument's type": lambda c, t: c["params"].update(n_mean_basis="many"),
    "rng": lambda c, t: c["run"]["rng"].update(bit_generator="MT19937"),
    "setting": lambda c, t: c["run"]["settings"].update(batch_size="x"),
    "steps": lambda c, t: c["run"].update(iteration=-1),
    "history": lambda c, t: c["run"].update(history=[1]),
    "names": lambda c, t: c.update(feature_names_in_=["a"]),
    "features": lambda c, t: c.update(n_features_in_=D + 1),
    "no tensor": lambda c, t: t.pop("posterior/cov_factor"),
    "tensor's shape": lambda c, t: t.update({"posterior/mean_coefficients": torch.zeros(12, 2)}),
    "moment": lambda c, t: t.update({"adam/posterior.mean_coefficients.exp_avg": torch.zeros(1)}),
    "half a moment": lambda c, t: t.pop("adam/posterior.mean_coefficients.exp_avg_sq"),
    "scaler": lambda c, t: t.update({"x_scaler/scale": torch.ones(D + 1)}),
    "scaler's type": lambda c, t: t.update({"x_scaler/varies": torch.ones(D)}),
    "first rows": lambda c, t: t.update(
        {"first_rows/0.x": torch.ones(2, D + 1), "first_rows/0.y": torch.ones(2, 1)}
    ),
}  # fmt: skip


OVERSIZED = {
    "mean basis": "the size of mean_coefficients",
    "cov basis": "the size of cov_factor",
    "ard": "its kernel claims to be larger",
    "batch": "its kernel claims to be larger",
    "strings": "are no sizes",
    "nodes": "its likelihood claims to be larger",
}


@pytest.mark.parametrize("name", FORGERIES)
def test_contents_that_do_not_fit_together(name, forge, tmp_path):
    forge(tmp_path / "model", lambda content, tensors: None)
    DecoupledGPRegressor.load(tmp_path / "model")
    forge(tmp_path / "model", FORGERIES[name])
    refused(tmp_path / "model", OVERSIZED.get(name, "cannot load"))


def test_file_is_plain_safetensors(tmp_path):
    fitted().save(tmp_path / "model")
    with safe_open(tmp_path / "model", framework="pt") as file:
        assert file.metadata()["format_version"] == "1"
        assert json.loads(file.metadata()["content"])["class"] == "DecoupledGPRegressor"
        assert "posterior/cov_factor" in file.keys()  # noqa: SIM118 - no dictionary
