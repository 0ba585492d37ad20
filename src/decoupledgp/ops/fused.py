"""Fused CPU loops (Numba): pairs of multiscale functions (Gram matrix, sampled quadratic), exp, Matérn.

l_i² + l_j² does not factor, so this is the one place with O(M |S| D) elementwise work. The quadratic
Σ_ij (a_i·a_j) K_ij visits each pair once: the kernel value, its product with the coefficients and
the derivatives in locations and length-scales come out of the same registers. This file is imported
when it is first needed, because importing Numba takes a second.

The loops release the GIL. The quadratic runs on our threads (`threads.py`) over a fixed number of
lanes, so results do not depend on the number of threads, and no threading layer of Numba's is
involved (those abort the process when two Python threads meet in them, or after a fork).
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import float32, njit
from numba.extending import overload

from decoupledgp.ops.threads import run_all

__all__ = [
    "PairGradients",
    "compiled_now",
    "exp_in_place",
    "gram",
    "gram_gradients",
    "matern_in_place",
    "quadratic",
    "warm_up",
]

TILE = 128
EXP_TILE = 1024
LANES = 16
MIN_LANE = 128

Array = np.ndarray[Any, Any]


class PairGradients(NamedTuple):
    """Value of the quadratic and its gradients in locations, length-scales and coefficients."""

    value: float
    z_i: Array
    l_i: Array
    A_i: Array
    z_j: Array
    l_j: Array
    A_j: Array


def quadratic(
    z_i: Array, l_i: Array, A_i: Array, z_j: Array, l_j: Array, A_j: Array, *, gradients: bool
) -> PairGradients:
    """Return Σ_ij (A_i A_jᵀ)_ij K_ij and, if asked, its gradients."""
    m, d = z_i.shape
    n, p = A_j.shape
    lanes = max(1, min(LANES, m // MIN_LANE))
    edges = np.linspace(0, m, lanes + 1).astype(np.int64)
    right = [np.ascontiguousarray(part.T) for part in (z_j, l_j, A_j)]
    left_out = (np.zeros_like(z_i), np.zeros_like(z_i), np.zeros_like(A_i), np.zeros(m, z_i.dtype))
    right_out = [
        tuple(np.zeros((rows, n), z_i.dtype) for rows in (d, d, p, 1)) for _ in range(lanes)
    ]
    jobs = []
    for k, sums in enumerate(right_out):
        lane: tuple[Any, ...] = (edges[k], edges[k + 1], *left_out, *sums, gradients)
        jobs.append(partial(_pairs, z_i, l_i, A_i, *right, *lane))
    value = sum(run_all(jobs, torch.device("cpu")))
    Tu_i, h_i, K_i, T_i = left_out
    Tu_j, h_j, K_j, T_j = (np.sum(part, axis=0).T for part in zip(*right_out, strict=True))
    left, other = _gradients(Tu_i, h_i, T_i, l_i, -2), _gradients(Tu_j, h_j, T_j[:, 0], l_j, 2)
    return PairGradients(value, *left, K_i, *other, K_j)


def exp_in_place(values: Array) -> None:
    """Replace numbers (one dimension) by their exponentials, on this thread; accurate to an ulp or two.

    Below the smallest normal number the result is that number, not less.
    """
    _exp_flat(values)


def matern_in_place(exponents: Array, slopes: Array, nu: float) -> None:
    """Replace exponents e (one dimension) by Matérn values of order 1/2, 3/2 or 5/2, see `matern.py`.

    The slopes in e are put into `slopes`, unless that is empty.
    """
    _matern_flat(exponents, slopes, int(nu))


def warm_up() -> None:
    """Load or compile all loops for both types."""
    for dtype in (np.float32, np.float64):
        one = np.ones((1, 1), dtype)
        quadratic(*[one] * 6, gradients=True)
        gram_gradients(gram(*[one] * 4), *[one] * 4)
        exp_in_place(one[0])
        matern_in_place(one[0], one[0].copy(), 1.5)


def compiled_now() -> bool:
    """Whether this process had to compile the loop, rather than load it from Numba's cache."""
    return bool(_pairs.stats.cache_misses)


def gram(z_i: Array, l_i: Array, z_j: Array, l_j: Array) -> Array:
    """Return the Gram matrix of two sets of functions."""
    K = np.empty((len(z_i), len(z_j)), z_i.dtype)
    _gram(z_i, l_i, np.ascontiguousarray(z_j.T), np.ascontiguousarray(l_j.T), K)
    return K


def gram_gradients(
    T: Array, z_i: Array, l_i: Array, z_j: Array, l_j: Array
) -> tuple[Array, Array, Array, Array]:
    """Return gradients in z_i, l_i, z_j, l_j of a function with T_ij = K_ij ∂/∂K_ij."""
    z_right, l_right = np.ascontiguousarray(z_j.T), np.ascontiguousarray(l_j.T)
    Tu_i, h_i = np.zeros_like(z_i), np.zeros_like(z_i)
    Tu_j, h_j = np.zeros_like(z_right), np.zeros_like(z_right)
    _gram_sums(T, z_i, l_i, z_right, l_right, Tu_i, h_i, Tu_j, h_j)
    return _gradients(Tu_i, h_i, T.sum(1), l_i, -2) + _gradients(Tu_j.T, h_j.T, T.sum(0), l_j, 2)


def _gradients(Tu: Array, h: Array, T: Array, l: Array, sign: int) -> tuple[Array, Array]:
    """From the sums over pairs to ∂/∂z = ∓2 Σ Tu and ∂/∂l = (½ΣT + l²Σh) / l, in place."""
    Tu *= sign
    h *= l
    h += l.dtype.type(0.5) * T[:, None] / l
    return Tu, h


# Reassociation lets sums over a tile run in vector registers; nothing here assumes finite numbers.
_loop = njit(
    nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz", "arcp"}
)


@_loop
def _gram(z_i, l_i, z_j, l_j, K):
    """Fill K tile by tile, as `_pairs` does."""
    dtype = z_i.dtype
    d, n = z_j.shape
    one, two = dtype.type(1.0), dtype.type(2.0)
    E, T = np.empty(TILE, dtype), np.empty(TILE, dtype)
    for i in range(z_i.shape[0]):
        for at in range(0, n, TILE):
            w = min(TILE, n - at)
            E[:] = 0
            T[:] = one
            for c in range(d):
                z, l = z_i[i, c], l_i[i, c]
                l2, l_twice = l * l, two * l
                z_c, l_c = z_j[c, at : at + w], l_j[c, at : at + w]
                for k in range(w):
                    inverse = one / (l2 + l_c[k] * l_c[k])
                    diff = z - z_c[k]
                    E[k] -= diff * diff * inverse
                    T[k] *= l_twice * l_c[k] * inverse
            _exp(E)
            K_c = K[i, at : at + w]
            for k in range(w):
                K_c[k] = E[k] * np.sqrt(T[k])


@_loop
def _gram_sums(T, z_i, l_i, z_j, l_j, Tu_i, h_i, Tu_j, h_j):
    """Sum Tu and h over pairs, for both sides."""
    dtype = z_i.dtype
    d, n = z_j.shape
    one, two = dtype.type(1.0), dtype.type(2.0)
    for i in range(z_i.shape[0]):
        T_c = T[i]
        for c in range(d):
            z, l2 = z_i[i, c], l_i[i, c] * l_i[i, c]
            z_c, l_c, Tu_c, h_c = z_j[c], l_j[c], Tu_j[c], h_j[c]
            sum_Tu, sum_h = dtype.type(0.0), dtype.type(0.0)
            for k in range(n):
                inverse = one / (l2 + l_c[k] * l_c[k])
                u = (z - z_c[k]) * inverse
                Tu = T_c[k] * u
                h = two * Tu * u - T_c[k] * inverse
                sum_Tu += Tu
                sum_h += h
                Tu_c[k] += Tu
                h_c[k] += h
            Tu_i[i, c] = sum_Tu
            h_i[i, c] = sum_h


@_loop
def _pairs(
    z_i, l_i, A_i, z_j, l_j, A_j, start, stop, Tu_i, h_i, K_i, T_i, Tu_j, h_j, K_j, T_j, gradients
):
    """Fill the sums over pairs (i in [start, stop), all j); arguments of the right side are transposed.

    T = (a_i·a_j) K, u = (z_i - z_j) / (l_i² + l_j²), h = T (2u² - 1 / (l_i² + l_j²)). Two left
    functions go side by side (names without and with a trailing underscore), so that what belongs to
    the right side is loaded and stored half as often; an odd last one meets itself with weight 0.
    """
    dtype = z_i.dtype
    d, n = z_j.shape
    p = A_i.shape[1]
    zero, one, two = dtype.type(0.0), dtype.type(1.0), dtype.type(2.0)
    K, K_ = np.empty(TILE, dtype), np.empty(TILE, dtype)
    T, T_ = np.empty(TILE, dtype), np.empty(TILE, dtype)
    u, u_ = np.empty((d, TILE), dtype), np.empty((d, TILE), dtype)
    iq, iq_ = np.empty((d, TILE), dtype), np.empty((d, TILE), dtype)
    value = 0.0
    for i in range(start, stop, 2):
        i_ = min(i + 1, stop - 1)
        weight = one if i_ > i else zero
        for at in range(0, n, TILE):
            w = min(TILE, n - at)
            # Slices, because an index k that starts at 0 needs no wrap-around test and vectorises.
            K[:] = 0
            K_[:] = 0
            T[:] = (
                one  # for now: the product of 2 l_i l_j / (l_i² + l_j²) ≤ 1, which cannot overflow
            )
            T_[:] = one
            for c in range(d):
                z, l, z_, l_ = z_i[i, c], l_i[i, c], z_i[i_, c], l_i[i_, c]
                l2, l2_, twice, twice_ = l * l, l_ * l_, two * l, two * l_
                z_c, l_c = z_j[c, at : at + w], l_j[c, at : at + w]
                u_c, u_c_, iq_c, iq_c_ = u[c], u_[c], iq[c], iq_[c]
                for k in range(w):
                    right, right2 = l_c[k], l_c[k] * l_c[k]
                    inverse, inverse_ = one / (l2 + right2), one / (l2_ + right2)
                    diff, diff_ = z - z_c[k], z_ - z_c[k]
                    ratio, ratio_ = diff * inverse, diff_ * inverse_
                    iq_c[k] = inverse
                    iq_c_[k] = inverse_
                    u_c[k] = ratio
                    u_c_[k] = ratio_
                    K[k] -= diff * ratio
                    K_[k] -= diff_ * ratio_
                    T[k] *= twice * right * inverse
                    T_[k] *= twice_ * right * inverse_
            _exp(K)
            _exp(K_)
            for k in range(w):
                K[k] *= np.sqrt(T[k])
                K_[k] *= np.sqrt(T_[k]) * weight
                T[k] = 0
                T_[k] = 0
            for c in range(p):
                a, a_ = A_i[i, c], A_i[i_, c]
                A_c, K_c = A_j[c, at : at + w], K_j[c, at : at + w]
                s, s_ = zero, zero
                for k in range(w):
                    T[k] += a * A_c[k]
                    T_[k] += a_ * A_c[k]
                    s += K[k] * A_c[k]
                    s_ += K_[k] * A_c[k]
                    K_c[k] += a * K[k] + a_ * K_[k]
                K_i[i, c] += s
                K_i[i_, c] += s_
            s, s_ = zero, zero
            for k in range(w):
                T[k] *= K[k]
                T_[k] *= K_[k]
                s += T[k]
                s_ += T_[k]
            T_i[i] += s
            T_i[i_] += s_
            value += s
            value += s_
            if not gradients:
                continue
            T_c = T_j[0, at : at + w]
            for k in range(w):
                T_c[k] += T[k] + T_[k]
            for c in range(d):
                sum_Tu, sum_Tu_, sum_h, sum_h_ = zero, zero, zero, zero
                u_c, u_c_, iq_c, iq_c_ = u[c], u_[c], iq[c], iq_[c]
                Tu_c, h_c = Tu_j[c, at : at + w], h_j[c, at : at + w]
                for k in range(w):
                    Tu, Tu_ = T[k] * u_c[k], T_[k] * u_c_[k]
                    h = two * Tu * u_c[k] - T[k] * iq_c[k]
                    h_ = two * Tu_ * u_c_[k] - T_[k] * iq_c_[k]
                    sum_Tu += Tu
                    sum_Tu_ += Tu_
                    sum_h += h
                    sum_h_ += h_
                    Tu_c[k] += Tu + Tu_
                    h_c[k] += h + h_
                Tu_i[i, c] += sum_Tu
                Tu_i[i_, c] += sum_Tu_
                h_i[i, c] += sum_h
                h_i[i_, c] += sum_h_
    return value


@_loop
def _exp_flat(values):
    for at in range(0, values.shape[0], EXP_TILE):
        _exp(values[at : min(at + EXP_TILE, values.shape[0])])


@_loop
def _matern_flat(values, slopes, order):
    """Fill values, and slopes if there is room for them; the order is 0, 1 or 2 for 1/2, 3/2 and 5/2."""
    dtype = values.dtype
    zero, one, third = dtype.type(0.0), dtype.type(1.0), dtype.type(1 / 3)
    factor, slope = dtype.type(-2 - 4 * order), dtype.type(3.0 if order == 1 else 5 / 3)
    roots = np.empty(EXP_TILE, dtype)
    for at in range(0, values.shape[0], EXP_TILE):
        x = values[at : min(at + EXP_TILE, values.shape[0])]
        w = x.shape[0]
        for k in range(w):
            square = factor * x[k]
            roots[k] = np.sqrt(zero if square < zero else square)  # in this order a NaN stays one
            x[k] = -roots[k]
        _exp(x)
        if slopes.shape[0]:
            beside = slopes[at : at + w]
            if order == 0:
                for k in range(w):
                    beside[k] = x[k] / roots[k] if roots[k] > zero else zero
            elif order == 1:
                for k in range(w):
                    beside[k] = slope * x[k]
            else:
                for k in range(w):
                    beside[k] = slope * (one + roots[k]) * x[k]
        if order == 1:
            for k in range(w):
                x[k] *= one + roots[k]
        elif order == 2:
            for k in range(w):
                x[k] *= one + roots[k] * (one + third * roots[k])


def _exp(x):
    """Replace x by exp(x): a polynomial that vectorises, unlike the C library's exp."""


# No reassociation here: the split of ln 2, and the sum that rounds to a whole number, must stay.
@overload(_exp, jit_options={"fastmath": {"contract"}, "error_model": "numpy"})
def _typed_exp(x):
    """Pick the exponential for the array's type.

    x = n ln 2 + r with n whole: adding and subtracting `ROUND` rounds to n and leaves it in the low
    bits of the sum, from where it moves to the exponent of 2ⁿ. Then a polynomial for exp(r).
    """
    return _exp32 if x.dtype == float32 else _exp64


f32 = np.float32
ROUND32, LOG2E32, LN2_HIGH32, LN2_LOW32 = (
    f32(1.5 * 2**23),
    f32(1.44269504),
    f32(0.693359375),
    f32(-2.12194440e-4),
)
ONE32, LEAST32, MOST32 = f32(1.0), f32(-87.0), f32(89.0)
P0, P1, P2 = f32(1.9875691500e-4), f32(1.3981999507e-3), f32(8.3334519073e-3)
P3, P4, P5 = f32(4.1665795894e-2), f32(1.6666665459e-1), f32(5.0000001201e-1)


def _exp32(x):
    scale = np.empty(x.shape[0], np.float32)
    bits = scale.view(np.int32)
    for k in range(x.shape[0]):
        v = x[k]
        v = LEAST32 if v < LEAST32 else v  # in this order a NaN stays one
        v = MOST32 if v > MOST32 else v
        rounded = v * LOG2E32 + ROUND32
        scale[k] = rounded
        n = rounded - ROUND32
        r = v - n * LN2_HIGH32 - n * LN2_LOW32
        y = ((((P0 * r + P1) * r + P2) * r + P3) * r + P4) * r + P5
        x[k] = y * r * r + r + ONE32
    for k in range(x.shape[0]):
        bits[k] = (bits[k] + np.int32(127)) << np.int32(23)
    for k in range(x.shape[0]):
        x[k] *= scale[k]


ROUND, LOG2E = 1.5 * 2**52, 1.4426950408889634
LN2_HIGH, LN2_LOW = 6.93145751953125e-1, 1.42860682030941723212e-6
LEAST, MOST = -708.0, 710.0


def _exp64(x):
    scale = np.empty(x.shape[0], np.float64)
    bits = scale.view(np.int64)
    for k in range(x.shape[0]):
        v = x[k]
        v = LEAST if v < LEAST else v
        v = MOST if v > MOST else v
        rounded = v * LOG2E + ROUND
        scale[k] = rounded
        n = rounded - ROUND
        r = v - n * LN2_HIGH - n * LN2_LOW
        r2 = r * r
        r4 = r2 * r2
        low = (1.0 + r) + r2 * (0.5 + r * (1.0 / 6.0))
        middle = (1.0 / 24.0 + r * (1.0 / 120.0)) + r2 * (1.0 / 720.0 + r * (1.0 / 5040.0))
        high = (1.0 / 40320.0 + r * (1.0 / 362880.0)) + r2 * (
            1.0 / 3628800.0 + r * (1.0 / 39916800.0) + r2 * (1.0 / 479001600.0)
        )
        x[k] = low + r4 * (middle + r4 * high)
    for k in range(x.shape[0]):
        bits[k] = (bits[k] + np.int64(1023)) << np.int64(52)
    for k in range(x.shape[0]):
        x[k] *= scale[k]
