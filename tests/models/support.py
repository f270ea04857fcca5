"""Opens checkpoints and runs authored graphs by the references, for the oracles of the models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lanewise.checkpoint.gguf import Gguf
from lanewise.checkpoint.source import Checkpoint, values
from lanewise.ir.graph import Graph
from lanewise.ir.interp import interpret
from lanewise.ir.values import DTYPES
from lanewise.lane.form import Cut
from lanewise.models.family import open_model
from lanewise.quant.caches import cache_array

GOLDEN = Path(__file__).parents[1] / "golden"


@dataclass(eq=False)
class Matrix:
    """A quantised matrix of a checkpoint, as the interpreter takes it."""

    checkpoint: Checkpoint
    name: str

    @property
    def format(self) -> str:
        return self.checkpoint.tensors[self.name].format

    @property
    def shape(self) -> tuple[int, ...]:
        return self.checkpoint.tensors[self.name].shape

    def decode(self) -> Any:
        return values(self.checkpoint, self.name)


def weight(checkpoint: Checkpoint, name: str) -> Any:
    """A tensor as the interpreter takes it."""
    info = checkpoint.tensors[name]
    if info.format in DTYPES:
        return checkpoint.raw(name).view(DTYPES[info.format]).reshape(info.shape)
    return Matrix(checkpoint, name)


def bindings(graph: Graph, checkpoint: Checkpoint, ids: Sequence[int]) -> dict[str, Any]:
    """Values of every root for one run of all ids from position 0."""
    found: dict[str, Any] = {n.name: weight(checkpoint, n.name) for _, n in graph.roots("weight")}
    for _, node in graph.roots("state"):
        type = node.types[0]
        plain = DTYPES.get(type.dtype, np.dtype(np.float32))
        zeros = np.zeros(type.shape, plain)
        found[node.name] = zeros if type.dtype in DTYPES else cache_array(zeros)
    count = np.arange(len(ids), dtype=np.uint32)
    found |= {
        "tokens": np.array(ids, np.uint32), "slots": np.zeros_like(count), "positions": count,
        "out_rows": count, "rows": np.array([len(ids)], np.uint32),
        "outs": np.array([len(ids)], np.uint32),
    }
    pages = next(n for _, n in graph.roots("input") if n.name == "pages").types[0].shape
    return found | {"pages": np.arange(pages[1], dtype=np.uint32)[None]}


def interpreted(path: Path, ids: Sequence[int], kv: str = "f32") -> Any:
    """The logits of every id by the references, f32 [T, V]."""
    with Gguf(path) as checkpoint:
        family, spec = open_model(checkpoint)
        cut = Cut("logits", len(ids), "all", context=len(ids), kv=kv, sample=False)
        graph = family.author(spec, cut)
        bound = bindings(graph, checkpoint, ids)
        return interpret(graph, bound | {"rope": spec.rope.table(len(ids))})["logits"]

