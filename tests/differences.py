"""Gradients against finite differences."""

from __future__ import annotations

import torch
from numpy.testing import assert_allclose

STEP = 1e-6


def assert_gradients(value, parameters, *, rtol=1e-7, atol=1e-5):
    """Compare autograd's gradients of `value()` with central differences, number by number."""
    gradients = torch.autograd.grad(value(), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        flat = parameter.data.view(-1)
        for k in range(flat.numel()):
            middle = flat[k].item()
            flat[k] = middle + STEP
            above = value().item()
            flat[k] = middle - STEP
            below = value().item()
            flat[k] = middle
            expected = (above - below) / (2 * STEP)
            assert_allclose(gradient.reshape(-1)[k], expected, rtol=rtol, atol=atol)
