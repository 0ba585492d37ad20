"""Saving and loading models: safetensors and JSON, no code."""

from decoupledgp.storage.file import ModelFileError
from decoupledgp.storage.model import load, save

__all__ = ["ModelFileError", "load", "save"]
