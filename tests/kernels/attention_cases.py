"""Cases of attention: a paged pool filled from contiguous K and V, and calls of the kernel."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt

from lanewise.quant import caches
from tests.kernels.native import aligned
from tests.kernels.rows import driver

PAGE = 64
CACHES = {"float16": 0, "float32": 1, "bfloat16": 3}  # as the driver counts them
GARBAGE = np.float32(np.nan)  # what no result may contain


@dataclass
class Case:
    """rows of q over slots; k, v per slot [slots, positions, kv_heads, d], already in the cache's
    dtype; the pool is shuffled, and every unwritten place of it holds NaN."""

    q: npt.NDArray[np.float32]
    k: np.ndarray
    v: np.ndarray
    slots: npt.NDArray[np.uint32]
    positions: npt.NDArray[np.uint32]
    scale: float
    softcap: float = 0.0
    window: int = 0
    shuffle: int = 0
    quantised: bool = False  # a q8_0 cache; k and v are its values
    sinks: npt.NDArray[np.float32] | None = None
    page: int = PAGE  # positions of a page

    def pool(self) -> tuple[np.ndarray, np.ndarray, npt.NDArray[np.uint32]]:
        """K [parts, kv, d, span], V [parts, kv, span, d], table [slots, blocks]."""
        slots, positions, kv, d = self.k.shape
        blocks = -(-positions // self.page)
        pages, span = slots * blocks + 3, min(self.page, PAGE)
        ids = np.arange(pages)
        if self.shuffle:
            ids = np.random.default_rng(self.shuffle).permutation(pages)
        table = ids[: slots * blocks].reshape(slots, blocks).astype(np.uint32)
        parts = pages * self.page // span
        k = np.full((parts, kv, d, span), GARBAGE, self.k.dtype)
        v = np.full((parts, kv, span, d), GARBAGE, self.v.dtype)
        for s in range(slots):
            for p in range(positions):
                at = table[s, p // self.page] * self.page + p % self.page
                k[at // span, :, :, at % span] = self.k[s, p]
                v[at // span, :, at % span] = self.v[s, p]
        if self.quantised:
            k, v = quantised_pages(k, 2), quantised_pages(v, 3)
        return k, v, table

    def run(
        self, isa: str, form: int = 0, shares: int = 1, more_pieces: int = 0,
        table: npt.NDArray[np.uint32] | None = None,
    ) -> npt.NDArray[np.float32]:  # fmt: skip
        """[rows, heads, d]; form: 0 whole, 1 split, + 2 with an epilogue."""
        rows, heads, d = self.q.shape
        kv = self.k.shape[2]
        k, v, own = self.pool()
        pages = k.shape[0] * min(self.page, PAGE) // self.page
        table = own if table is None else table
        drive = driver(isa)
        out = np.full((rows, heads, d), np.nan, np.float32)
        pieces = int(self.positions.max(initial=0)) // 256 + 1 + more_pieces
        pieces = min(pieces, table.shape[1] * self.page // 256 + 2)
        partial = np.full(rows * heads * pieces * (d + 2), np.nan, np.float32)
        scratch = aligned(drive(10, d, heads // kv))
        cache = 2 if self.quantised else CACHES[self.k.dtype.name]
        drive(
            7, form, cache, self.q, k, v, np.ascontiguousarray(table), table.shape[1],
            self.slots, self.positions, rows, heads, kv, d, float(self.scale),
            float(self.softcap), self.window, out, partial, pieces, scratch, pages,
            table.shape[0], shares, 0 if self.sinks is None else self.sinks, self.page,
        )  # fmt: skip
        return out

    def rows(self, index: npt.ArrayLike) -> Case:
        """Some rows alone, over the same cache."""
        i = np.atleast_1d(index)
        return Case(
            np.ascontiguousarray(self.q[i]), self.k, self.v, self.slots[i], self.positions[i],
            self.scale, self.softcap, self.window, self.shuffle, self.quantised,
            self.sinks, self.page,
        )  # fmt: skip

    def exact(self) -> npt.NDArray[np.float64]:
        """The same in float64."""
        out = np.zeros(self.q.shape)
        group = self.q.shape[1] // self.k.shape[2]
        for r, (s, p) in enumerate(zip(self.slots, self.positions, strict=True)):
            first = max(0, int(p) - self.window + 1) if self.window else 0
            k = np.repeat(self.k[s, first : p + 1].astype(float), group, 1)
            v = np.repeat(self.v[s, first : p + 1].astype(float), group, 1)
            score = np.einsum("hd,phd->hp", self.q[r].astype(float), k) * self.scale
            if self.softcap:
                score = self.softcap * np.tanh(score / self.softcap)
            if self.sinks is not None:
                score = np.concatenate([score, self.sinks.astype(float)[:, None]], 1)
            e = np.exp(score - score.max(1, keepdims=True))
            out[r] = np.einsum("hp,phd->hd", (e / e.sum(1, keepdims=True))[:, : len(v)], v)
        return out


def make(
    *, rows: npt.ArrayLike, slots: npt.ArrayLike | None = None, heads: int = 3, kv: int = 1,
    d: int = 64, dtype: str = "f2", seed: int = 1, softcap: float = 0.0, window: int = 0,
    spread: float = 1.0, sink: float | None = None, scale: float | None = None, page: int = PAGE,
) -> Case:  # fmt: skip
    """`rows`: positions; the cache is as long as the longest; sinks are N(`sink`, 1)."""
    rng = np.random.default_rng(seed)
    positions = np.asarray(rows, np.uint32)
    slot = np.zeros(len(positions), np.uint32) if slots is None else np.asarray(slots, np.uint32)
    shape = (int(slot.max()) + 1, int(positions.max()) + 1, kv, d)
    q = (rng.standard_normal((len(positions), heads, d)) * spread).astype(np.float32)
    quantised = dtype == "q8_0"
    kind = {"q8_0": "f4", "bf16": ml_dtypes.bfloat16}.get(dtype, dtype)
    k, v = (rng.standard_normal(shape).astype(kind) for _ in range(2))
    if quantised:
        k, v = (np.asarray(caches.cache_array(x)) for x in (k, v))
    return Case(
        q, k, v, slot, positions, d**-0.5 if scale is None else scale, softcap, window,
        shuffle=seed, quantised=quantised,
        sinks=None if sink is None else rng.normal(sink, 1, heads).astype(np.float32),
        page=page,
    )  # fmt: skip


def quantised_pages(pages: np.ndarray, axis: int) -> np.ndarray:
    """Pages of values -> bytes [pages, kv, ...]: a head's codes, then its scales; the channels
    are `axis`.  NaN stays, as a scale."""
    codes, scales = caches.encode(np.moveaxis(pages, axis, -1))
    parts = [
        np.ascontiguousarray(np.moveaxis(x, -1, axis)).reshape(*x.shape[:2], -1).view(np.uint8)
        for x in (codes, scales)
    ]
    return np.concatenate(parts, -1)
