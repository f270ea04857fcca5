"""Running any graph on this machine's CPU, for tests: compile, bind by name, run, read back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from lanewise.dtypes import from_numpy
from lanewise.ir.graph import Graph, Type
from lanewise.ir.values import DTYPES
from lanewise.pipeline import Options, compile_forms
from lanewise.plan.plan import Plan
from lanewise.plan.program import Constant, Program
from lanewise.quant import caches
from lanewise.quant.caches import CacheArray
from lanewise.runtime.build import build, packer_library
from lanewise.runtime.library import Library
from lanewise.runtime.session import Session
from lanewise.targets.cpu import CpuTarget, cpu_target

DEFAULT = Options()


@cache
def packers(formats: tuple[str, ...], target: CpuTarget) -> Library:
    return Library(packer_library(formats, target))


def aligned(nbytes: int) -> np.ndarray:
    raw = np.zeros(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


def raw_bytes(value: Any) -> np.ndarray:
    data = value.data if hasattr(value, "format") else value
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8)


def stored(constant: Constant, value: Any, target: CpuTarget) -> np.ndarray:
    """A constant's bytes as the program wants them."""
    out = aligned(constant.nbytes)
    if constant.packer == "raw":
        out[:] = raw_bytes(value)
        return out
    *lead, n, k = constant.type.shape
    source, count = raw_bytes(value), math.prod(lead)
    library = packers((constant.type.dtype,), target)
    pack = library.function(f"lw_pack_{constant.type.dtype}", "vppllll")
    for e in range(count):
        of, into = (x.ctypes.data + e * (x.nbytes // count) for x in (source, out))
        pack(of, into, n, k, 0, math.ceil(n / 16))
    return out


def to_pages(value: np.ndarray, layout: str, span: int = 64) -> np.ndarray:
    """A logical state [.., P*64, H, D] as its pool lies in memory; a q8_0 one as bytes."""
    if layout == "flat":
        return value
    if isinstance(value, CacheArray):
        codes, scales = caches.encode(value)
        heads = (math.prod(value.shape[:-3]) * value.shape[-3] // span * value.shape[-2], -1)
        planes = [to_pages(part, layout, span) for part in (codes, scales)]
        parts = [x.reshape(heads).view(np.uint8) for x in planes]
        return np.concatenate(parts, axis=1).reshape(-1)
    *lead, positions, heads, d = value.shape
    paged = value.reshape(*lead, positions // span, span, heads, d)
    order = (1, 2, 0) if layout == "panels" else (1, 0, 2)
    n = len(lead) + 1
    axes = [*range(n), *(n + a for a in order)]
    return np.ascontiguousarray(paged.transpose(axes)).reshape(value.shape)


def from_pages(
    raw: np.ndarray, layout: str, type: Type | None = None, span: int = 64
) -> np.ndarray:
    """The inverse of `to_pages`; `type` is that of a q8_0 state."""
    if layout == "flat":
        return raw
    if type is not None and type.dtype == "q8_0":
        *lead, width = type.shape
        pages = raw.reshape(-1, span * width + 2 * span * width // 32)
        codes = np.ascontiguousarray(pages[:, : span * width]).view(np.int8)
        scales = np.ascontiguousarray(pages[:, span * width :]).view(np.float16)
        return caches.decode(
            from_pages(codes.reshape(type.shape), layout, None, span),
            from_pages(scales.reshape(*lead, width // 32), layout, None, span),
        )
    *lead, positions, heads, d = raw.shape
    inner = (heads, d, span) if layout == "panels" else (heads, span, d)
    paged = raw.reshape(*lead, positions // span, *inner)
    n = len(lead) + 1
    order = (2, 0, 1) if layout == "panels" else (1, 0, 2)
    return paged.transpose([*range(n), *(n + a for a in order)]).reshape(raw.shape)


def cache_spans(graph: Graph) -> dict[str, int]:
    """State -> positions that lie together: 64, or those of a small page."""
    return {
        graph.nodes[graph.states[r].root].name: min(64, int(n.attr("page")))
        for n in graph.nodes if n.op in ("attention", "kv_write")
        for r in n.operands if r in graph.states
    }  # fmt: skip


class Native:
    """A graph compiled; `run` binds roots by name and gives the outputs (and states) by name."""

    def __init__(
        self, graph: Graph, values: Mapping[str, Any], options: Options = DEFAULT,
        threads: int = 2, target: CpuTarget | None = None,
    ) -> None:
        self.graph, self.target = graph, target or cpu_target()
        made: tuple[Program, dict[str, Plan]] = compile_forms(
            {"main": graph}, options, target=self.target.name
        )
        self.program, self.plan = made[0], made[1]["main"]
        library = Library(build(self.program, self.target))
        constants = {
            c.name: stored(c, values[c.name], self.target) for c in self.program.constants
        }
        self.session = Session(self.program, library, constants, threads=threads)

    def run(self, values: Mapping[str, Any], live: Mapping[str, int] | None = None) -> dict:
        entry = self.program.form("main")
        for name, _ in entry.inputs:
            self.session.input("main", name)[...] = np.asarray(values[name])
        here = {b.name for b in self.program.buffers}
        states = [n for _, n in self.graph.roots("state") if n.name in here]
        layouts = {n.name: n.attributes.get("layout", "rows") for n in states}
        types = {n.name: n.types[0] for n in states}
        spans = cache_spans(self.graph)
        for name, layout in layouts.items():
            self.session.state(name)[...] = to_pages(values[name], layout, spans.get(name, 64))
        scalars = {n: values.get(n, 0) for n, _ in self.program.scalars} | dict(live or {})
        self.session.run("main", {k: np.asarray(v).reshape(-1)[0].item()
                                  for k, v in scalars.items()})
        out = {name: self.session.output("main", name).copy() for name, _ in entry.outputs}
        for name, layout in layouts.items():
            raw = self.session.state(name).copy()
            out[name] = from_pages(raw, layout, types[name], spans.get(name, 64))
        return out


def bits(a: np.ndarray) -> np.ndarray:
    """An array's bits, every NaN the same."""
    raw = np.ascontiguousarray(a)
    if from_numpy(raw.dtype).is_float:
        raw = np.where(np.isnan(raw.astype(np.float32)), np.asarray(np.nan, raw.dtype), raw)
    return raw.view(np.uint8)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and bool((bits(a) == bits(b)).all())


def values_for(graph: Graph, rng: np.random.Generator) -> dict[str, Any]:
    """Random values for every root of a graph: floats N(0, 1), ids and positions small."""
    out: dict[str, Any] = {}
    for _, node in graph.roots():
        out[node.name] = value_for(node.types[0], rng)
    return out


def value_for(type: Type, rng: np.random.Generator) -> Any:
    if type.dtype in ("u32", "i32"):
        return rng.integers(0, 3, type.shape).astype(DTYPES[type.dtype])
    if type.dtype == "q8_0" and len(type.shape) > 2:
        return caches.cache_array(rng.standard_normal(type.shape))
    return rng.standard_normal(type.shape).astype(np.float32).astype(DTYPES[type.dtype])
