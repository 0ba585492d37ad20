"""The bare pair loop: the least arithmetic that the multiscale quadratic and its gradient need.

Per pair and dimension one division, the exponent and the product for the value; then u, h and the
sums over pairs for the gradients of one side. No gradients of the other side, no coefficients of
several outputs, no exponential of its own.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numba import njit

TILE = 128


def bare_pairs(z_i, l_i, A_i, z_j, l_j, A_j):
    """Run the loop over all pairs on as many threads as PyTorch uses."""
    threads = torch.get_num_threads()
    edges = np.linspace(0, len(z_i), threads + 1).astype(int)
    out = np.zeros_like(z_i)
    with ThreadPoolExecutor(threads) as pool:
        jobs = [
            pool.submit(_loop, z_i, l_i, A_i, z_j, l_j, A_j, edges[k], edges[k + 1], out)
            for k in range(threads)
        ]
        return sum(job.result() for job in jobs)


@njit(nogil=True, cache=True, error_model="numpy", fastmath=True)
def _loop(z_i, l_i, A_i, z_j, l_j, A_j, start, stop, out):
    dtype = z_i.dtype
    d, n = z_j.shape
    one, two = dtype.type(1.0), dtype.type(2.0)
    E, T = np.empty(TILE, dtype), np.empty(TILE, dtype)
    u, iq = np.empty((d, TILE), dtype), np.empty((d, TILE), dtype)
    value = 0.0
    for i in range(start, stop):
        for at in range(0, n, TILE):
            w = min(TILE, n - at)
            E[:] = 0
            T[:] = one
            for c in range(d):
                z, l = z_i[i, c], l_i[i, c]
                z_c, l_c, u_c, iq_c = z_j[c, at : at + w], l_j[c, at : at + w], u[c], iq[c]
                for k in range(w):
                    inverse = one / (l * l + l_c[k] * l_c[k])
                    diff = z - z_c[k]
                    iq_c[k] = inverse
                    u_c[k] = diff * inverse
                    E[k] += diff * diff * inverse
                    T[k] *= two * l * l_c[k] * inverse
            A_c, a = A_j[0, at : at + w], A_i[i, 0]
            for k in range(w):
                T[k] = a * A_c[k] * T[k] * E[k]
            for c in range(d):
                u_c, iq_c = u[c], iq[c]
                sum_u, sum_h = dtype.type(0.0), dtype.type(0.0)
                for k in range(w):
                    Tu = T[k] * u_c[k]
                    sum_u += Tu
                    sum_h += two * Tu * u_c[k] - T[k] * iq_c[k]
                out[i, c] += sum_u + sum_h
            value += T[0]
    return value
