"""NumPy models of the recipes of activations and products: the bits that kernels must give.

Laws:
  - every model is exact: it makes the kernel's bits, not something close (f32 operations of NumPy
    round once, as IEEE 754 says; a fused multiply-add is emulated exactly by ``fma``);
  - a model reads decoded integers and scales, never packed bytes: it is written from
    docs/recipes.md, not from the kernels;
  - speed does not matter here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

Activation = Literal["int8x2", "int8"]

GROUP = 32
"""Elements of K that share an activation scale."""
CHAIN = 512
"""Elements of K after which a chain of sums restarts from zero."""
LEVELS: dict[Activation, int] = {"int8x2": 16256, "int8": 127}


def fma(a: npt.ArrayLike, b: npt.ArrayLike, c: npt.ArrayLike) -> F32:
    """a*b + c in f32 with one rounding.

    The product of two f32 is exact in f64.  The sum is rounded to odd: of the two f64 around the
    exact value, the one whose last bit is set; that keeps what the second rounding, to f32,
    must know (Boldo and Melquiond 2008: 53 bits suffice, as 53 >= 24 + 2).
    """
    with np.errstate(all="ignore"):
        p = np.asarray(a, np.float32).astype(np.float64) * np.asarray(b, np.float32)
        z = np.asarray(c, np.float32).astype(np.float64)
        p, z = np.broadcast_arrays(p, z)
        total = np.asarray(p + z)
        t = total - p
        error = (p - (total - t)) + (z - t)  # TwoSum: total + error is exact
        bits = total.view(np.int64)
        move = np.isfinite(total) & (error != 0) & ((bits & 1) == 0)
        step = np.where((error > 0) == (total > 0), 1, -1)
        return np.where(move, bits + step, bits).view(np.float64).astype(np.float32)


@dataclass(frozen=True)
class Activations:
    """Rows of activations as integers: values [M, K] int32, scales [M, K/32] f32."""

    values: I32
    scales: F32

    def sums(self) -> I64:
        """[M, K/32]: the sum of the integers of every group."""
        m, k = self.values.shape
        return self.values.reshape(m, k // GROUP, GROUP).astype(np.int64).sum(axis=2)

    def words(self) -> tuple[I32, I32]:
        """The two words of int8x2: values = 128*hi + lo, -64 <= lo <= 63."""
        hi = (self.values + 64) >> 7
        return hi, self.values - (hi << 7)


def quantize(x: F32, kind: Activation) -> Activations:
    """The activation recipe.  x: f32 [M, K], K a multiple of 32."""
    m, k = x.shape
    groups = x.reshape(m, k // GROUP, GROUP)
    with np.errstate(all="ignore"):
        top = np.abs(groups).max(axis=2)
        bad = ~np.isfinite(groups).all(axis=2)
        scale = (top / np.float32(LEVELS[kind])).astype(np.float32)
        small = ~bad & (scale < np.float32(2.0**-126))
        divisor = np.where(bad | small, np.float32(1), scale).astype(np.float32)
        values = np.rint(groups / divisor[:, :, None])
    values = np.where((bad | small)[:, :, None], np.float32(0), values).astype(np.int32)
    scale = np.where(small, np.float32(0), np.where(bad, np.float32(np.nan), scale))
    return Activations(values.reshape(m, k), scale.astype(np.float32))


@dataclass(frozen=True)
class Weights:
    """A quantised matrix, taken apart.

    codes: int32 [N, K], the format's offset already subtracted; scales: f32 [N, K/sub], with
    sub = 32, or 16 for q6_k (k-quants: fl(f32(d) * sc)); minimums: f32 [N, K/32], what is added
    (k-quants: -fl(f32(dmin) * m)), or None.
    """

    codes: I32
    scales: F32
    minimums: F32 | None

    def decode(self) -> F32:
        """[N, K]: code * scale (+ minimum), each rounded to f32."""
        k = self.codes.shape[1]
        sub = k // self.scales.shape[1]
        with np.errstate(all="ignore"):
            w = self.codes.astype(np.float32) * np.repeat(self.scales, sub, axis=1)
            if self.minimums is not None:
                w = w + np.repeat(self.minimums, GROUP, axis=1)
        return w.astype(np.float32)


def quantized_product(weights: Weights, x: Activations) -> F32:
    """The recipe of a product of quantised weights and integer activations: f32 [M, N]."""
    m, k = x.values.shape
    n = weights.codes.shape[0]
    sub = k // weights.scales.shape[1]
    codes, values = weights.codes.astype(np.float64), x.values.astype(np.float64)
    sums = x.sums().astype(np.float32)
    total = np.zeros((m, n), np.float32)
    total_mins = np.zeros((m, n), np.float32)
    with np.errstate(all="ignore"):
        for start in range(0, k, CHAIN):
            acc, mins = np.zeros((m, n), np.float32), np.zeros((m, n), np.float32)
            for at in range(start, min(k, start + CHAIN), sub):
                # Below 2^53, so the f64 sum is the exact integer; one rounding makes it f32.
                z = (values[:, at : at + sub] @ codes[:, at : at + sub].T).astype(np.float32)
                scale = x.scales[:, at // GROUP, None] * weights.scales[None, :, at // sub]
                acc = fma(z, scale, acc)
            if weights.minimums is not None:
                for group in range(start // GROUP, min(k, start + CHAIN) // GROUP):
                    sv = x.scales[:, group] * sums[:, group]
                    mins = fma(weights.minimums[None, :, group], sv[:, None], mins)
            total = acc if start == 0 else total + acc
            total_mins = mins if start == 0 else total_mins + mins
        return total if weights.minimums is None else total + total_mins


def float_product(weights: F32, x: F32) -> F32:
    """The recipe of a product of float weights [N, K] and f32 activations [M, K]: f32 [M, N]."""
    m, k = x.shape
    total = np.zeros((m, weights.shape[0]), np.float32)
    with np.errstate(all="ignore"):
        for start in range(0, k, CHAIN):
            acc = np.zeros_like(total)
            for at in range(start, min(k, start + CHAIN)):
                acc = fma(x[:, at, None], weights[None, :, at], acc)
            total = acc if start == 0 else total + acc
    return total


def reference_product(weights: F32, x: F32) -> F32:
    """The reference mode: f64 sums in order, rounded once.  weights: decoded f32 [N, K]."""
    m, k = x.shape
    total: F64 = np.zeros((m, weights.shape[0]))
    w, v = weights.astype(np.float64), x.astype(np.float64)
    with np.errstate(all="ignore"):
        for start in range(0, k, CHAIN):
            acc = np.zeros_like(total)
            for at in range(start, min(k, start + CHAIN)):
                acc = acc + v[:, at, None] * w[None, :, at]  # the product is exact in f64
            total = acc if start == 0 else total + acc
        return total.astype(np.float32)
