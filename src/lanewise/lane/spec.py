"""What a model is (ModelSpec), and what a checkpoint holds (ModelInfo): frozen, plain numbers.

A spec says everything that the authored step depends on, so that equal specs author equal graphs;
nothing in it refers to a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from lanewise.checkpoint.source import TensorInfo

_ROWS = 4096  # positions of a rope table that are computed at a time
PAGE = 64  # positions of one page of the KV pool: the attention block of every recipe
KV_GROUP = 32  # channels that share a scale in a quantised cache
KV_BYTES = {"f16": 64, "f32": 128, "q8_0": 34}  # of KV_GROUP channels


@dataclass(frozen=True)
class Rope:
    """Rotary positions.  `style` pairs channels (i, i + rotary/2) ("half") or (2i, 2i + 1)
    ("interleaved"); channel pair j turns by position / scale * base^(-2j/rotary) / factors[j]
    (no factors: all 1).  `rotary` channels turn, the rest of a head passes through."""

    style: str
    base: float
    rotary: int
    scale: float = 1.0
    factors: tuple[float, ...] = ()

    def table(self, positions: int) -> NDArray[np.float32]:
        """f32 [positions, rotary]: cosines, then sines; computed in float64, rounded once."""
        pair = np.arange(self.rotary // 2, dtype=np.float64)
        turn = np.float64(self.base) ** (-2.0 * pair / self.rotary)
        if self.factors:
            turn = turn / np.asarray(self.factors, np.float64)
        out = np.empty((positions, self.rotary), np.float32)
        for at in range(0, positions, _ROWS):  # in parts: float64 takes several times the room
            rows = out[at : at + _ROWS]
            angle = np.arange(at, at + len(rows), dtype=np.float64)[:, None] / self.scale * turn
            rows[:, : len(pair)] = np.cos(angle)
            rows[:, len(pair) :] = np.sin(angle)
        return out


@dataclass(frozen=True)
class ModelSpec:
    """The hyperparameters of a decoder: counts, sizes in elements, and what its layers have.

    `context` is the number of positions that the checkpoint was made for; `scale` multiplies
    attention scores; a row sees the last `window` positions (0: all); `biases` names the
    projections of a layer that add one; `formats` gives (tensor, dtype or Format)."""

    architecture: str
    name: str
    layers: int
    width: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    eps: float
    scale: float
    rope: Rope
    tied: bool
    window: int = 0
    qk_norm: bool = False
    biases: tuple[str, ...] = ()
    formats: tuple[tuple[str, str], ...] = ()

    @cached_property
    def format_of(self) -> Mapping[str, str]:
        """Tensor name -> scalar dtype or Format name."""
        return MappingProxyType(dict(self.formats))

    def kv_bytes(self, context: int, kv: str = "f16") -> int:
        """Bytes of K and V of all layers for `context` positions (whole pages)."""
        positions = -(-context // PAGE) * PAGE
        channels = 2 * self.layers * positions * self.kv_heads * self.head_dim
        return channels * KV_BYTES[kv] // KV_GROUP


@dataclass(frozen=True)
class ModelInfo:
    """What `inspect` shows.  `spec` is None, and `problem` says why, if we do not run the model;
    `unused` names tensors that no step of the family reads."""

    path: str
    architecture: str
    metadata: Mapping[str, object]
    tensors: tuple[TensorInfo, ...]
    spec: ModelSpec | None
    problem: str = ""
    unused: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """One line: the fields themselves would fill a screen."""
        problem = f", {self.problem.splitlines()[0]}" if self.problem else ""
        count = f"{len(self.tensors)} tensors, {self.parameters:,} parameters"
        return f"<ModelInfo {self.path}: {self.architecture}, {count}{problem}>"

    @property
    def parameters(self) -> int:
        """The number of weights in all tensors."""
        return sum(t.elements for t in self.tensors)

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors)

    @property
    def totals(self) -> Mapping[str, tuple[int, int]]:
        """Format -> (number of tensors, bytes), most bytes first."""
        sums: dict[str, tuple[int, int]] = {}
        for t in self.tensors:
            count, size = sums.get(t.format, (0, 0))
            sums[t.format] = (count + 1, size + t.nbytes)
        return MappingProxyType(dict(sorted(sums.items(), key=lambda kv: -kv[1][1])))

    def memory(self, context: int, kv: str = "f16") -> int:
        """Bytes needed to run with `context` positions: packed weights (at most 1.03 of what is
        stored), K and V, the rope table, logits.  The program's arena comes on top (small)."""
        if self.spec is None:
            return 0
        table = 4 * context * self.spec.rope.rotary
        weights = self.nbytes + self.nbytes * 3 // 100
        return weights + self.spec.kv_bytes(context, kv) + table + 4 * self.spec.vocab
