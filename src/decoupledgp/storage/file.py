"""The file itself: bytes with a digest of their own, replaced at once or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

import decoupledgp

__all__ = ["UNFIT", "ModelFileError", "pack", "replace_file", "unpack"]

FORMAT = "decoupledgp"
FORMAT_VERSION = 1
LONGEST_HEADER = 100_000_000
"""safetensors allows no longer ones."""
NO_DIGEST = "0" * 64
UNFIT = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    SafetensorError,
    TypeError,
)
"""What reading a file raises if its contents do not fit together."""


class ModelFileError(ValueError):
    """A file that is no model, is damaged, or holds another model than the one asked for."""


def pack(tensors: dict[str, Tensor], content: str) -> bytes:
    """Return the bytes of the file, with their own digest in the header."""
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "content": content,
        "sha256": NO_DIGEST,
    }
    data = tensors_to_bytes(tensors, metadata=metadata)
    head, found, rest = data.partition(_field(NO_DIGEST))
    if not found:
        raise RuntimeError("this version of safetensors writes headers in a way not known here")
    return head + _field(hashlib.sha256(data).hexdigest()) + rest


def unpack(file: BinaryIO) -> tuple[bytes, dict[str, Any]]:
    """Return the bytes of the file and its JSON, the version checked first and then the digest."""
    start = file.read(8)
    n_header = int.from_bytes(start, "little")
    if len(start) < 8 or n_header > LONGEST_HEADER:
        raise ModelFileError("it is empty" if not start else "it is no decoupledgp model file")
    header = file.read(n_header)
    if len(header) < n_header:
        raise ModelFileError("it is cut short, or no decoupledgp model file")
    metadata = _metadata(header)
    file.seek(0)
    data = file.read()
    digest = metadata["sha256"]
    check = hashlib.sha256(start + header.replace(_field(digest), _field(NO_DIGEST), 1))
    check.update(memoryview(data)[8 + n_header :])
    if check.hexdigest() != digest:
        raise ModelFileError("it is damaged: cut short, or changed since it was saved")
    return data, json.loads(metadata["content"])


def _metadata(header: bytes) -> dict[str, str]:
    """Return the header's texts if this is a model file of a format known here."""
    try:
        metadata = json.loads(header)["__metadata__"]
        known = metadata["format"] == FORMAT
        version = int(metadata["format_version"])
    except (*UNFIT, ValueError) as error:
        raise ModelFileError("it is no decoupledgp model file, or damaged") from error
    if not known or version < 1:
        raise ModelFileError("it is no decoupledgp model file")
    if version > FORMAT_VERSION:
        raise ModelFileError(
            f"it has format version {version}, and decoupledgp {decoupledgp.__version__} reads "
            f"version {FORMAT_VERSION} at most; install a newer decoupledgp"
        )
    return metadata


def _field(digest: str) -> bytes:
    return f'"sha256":"{digest}"'.encode()


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file at once: whoever opens it finds the old one or the new one, whole."""
    temporary = path.with_name(f".decoupledgp-{secrets.token_hex(8)}.tmp")
    try:
        _write(temporary, data)
        if path.exists():
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _write(path: Path, data: bytes) -> None:
    """Write a new file and wait until it is on the disk.

    Where Linux allows it, the file has no name until it is complete, so that nothing stays behind
    if the process is killed meanwhile.
    """
    with contextlib.suppress(AttributeError, OSError):
        with open(os.open(path.parent, os.O_TMPFILE | os.O_WRONLY, 0o666), "wb") as file:
            _write_and_sync(file, data)
            # With a directory given, os.link follows the link in /proc to the file.
            os.link(f"/proc/self/fd/{file.fileno()}", path, src_dir_fd=file.fileno())
        return
    with open(path, "xb") as file:
        _write_and_sync(file, data)


def _write_and_sync(file: BinaryIO, data: bytes) -> None:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())
