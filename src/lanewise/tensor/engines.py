"""What runs a plan: the native program bound to the caller's memory, or the reference.

Both take `bind(name, bound)` for what changed, `run(numbers)`, and give a thread for submissions:
`submitter()`, whose `post(engine, fence, numbers)` starts a run and whose `leave()` ends it.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from lanewise.ir.graph import Graph
from lanewise.ir.interp import interpret
from lanewise.ir.values import QuantArray
from lanewise.kernels.layout import PANEL, packed_bytes
from lanewise.plan.program import Constant, Program
from lanewise.quant.caches import CacheArray
from lanewise.runtime.build import Target, packer_library
from lanewise.runtime.library import Library
from lanewise.runtime.memory import Block
from lanewise.runtime.pool import on_fork
from lanewise.runtime.session import Session
from lanewise.tensor.attention import cache_pages, from_pages, to_pages
from lanewise.tensor.binding import Bound
from lanewise.tensor.buffers import Array, aligned
from lanewise.tensor.fence import Fence, failure
from lanewise.tensor.handles import PortDesc
from lanewise.tensor.lowering import PAGE


class Packed:
    """The packed form of each weight, shared by a plan's instances; by the array's identity.

    All first forms lie side by side in one block of huge pages: a step that reads every weight
    would else spend its time on translating addresses.
    """

    def __init__(self, program: Program, target: Target) -> None:
        self._made: dict[str, tuple[Array, Array]] = {}
        self._lock = threading.Lock()
        names = sorted({c.type.dtype for c in program.constants})
        self._library = library = Library(packer_library(names, target)) if names else None
        self._constants: dict[str, tuple[Constant, int]] = {}  # and the bytes of each
        for c in program.constants:
            assert library is not None
            *lead, n, k = c.type.shape
            size = int(library.function(f"lw_packed_bytes_{c.type.dtype}", "lll")(n, k))
            self._constants[c.name] = c, _lines(max(size * math.prod(lead), c.nbytes))
        self._room: dict[str, Array] | None = None  # places that were not taken yet
        on_fork(self)

    def after_fork(self) -> None:
        """In a child process nobody packs any more."""
        self._lock = threading.Lock()

    def get(self, name: str, array: Array) -> Array:
        with self._lock:
            known = self._made.get(name)
            if known is None or known[0] is not array:
                known = self._made[name] = (array, self._pack(name, array))
            return known[1]

    def _pack(self, name: str, array: Array) -> Array:
        (constant, size), library = self._constants[name], self._library
        assert library is not None
        if self._room is None:
            self._room = self._places()
        out = self._room.pop(name, None)
        if out is None:  # the first form may be in use by another instance
            out = Block(size, f"weight {name!r}").bytes
        *lead, n, k = constant.type.shape
        count, of, into = math.prod(lead), array.ctypes.data, out.ctypes.data
        each = packed_bytes(constant.type) // count
        pack = library.function(f"lw_pack_{constant.type.dtype}", "vppllll")
        for e in range(count):
            pack(of + e * (array.nbytes // count), into + e * each, n, k, 0, -(-n // PANEL))
        return out

    def _places(self) -> dict[str, Array]:
        block = Block(sum(size for _, size in self._constants.values()), "a plan's weights")
        places, at = dict[str, Array](), 0
        for name, (_, size) in self._constants.items():
            places[name] = block.bytes[at : at + size]
            at += size
        return places

    def forget(self) -> None:
        with self._lock:
            self._made.clear()


def _lines(nbytes: int) -> int:
    return -(-nbytes // 64) * 64


class Native:
    """A session of the program whose every buffer is the caller's."""

    def __init__(
        self, program: Program, library: Library, values: Mapping[str, Array], packed: Packed,
        threads: int | None,
    ) -> None:  # fmt: skip
        self.session = Session(program, library, {}, threads=threads, lent=True)
        self._packed = packed
        self._constants = {c.name for c in program.constants}
        self._at = {b.name.removeprefix("main/"): i for i, b in enumerate(program.buffers)}
        self._held: dict[str, Array] = {}
        for name, value in values.items():
            if name in self._at:
                own = aligned(value.nbytes)
                own[:] = value.reshape(-1).view(np.uint8)
                self._held[name] = own
                self.session.bind(self._at[name], own.ctypes.data)

    def bind(self, name: str, bound: Bound) -> None:
        index = self._at.get(name)
        if index is None:  # a port that nothing reads
            return
        if name in self._constants:
            packed = self._held[name] = self._packed.get(name, bound.array)
            self.session.bind(index, packed.ctypes.data)
        else:
            self._held[name] = bound.array
            self.session.bind(index, bound.begin)

    def run(self, numbers: Mapping[str, int | float]) -> None:
        self.session.run("main", numbers)

    def submitter(self, known: Any) -> NativeThread:
        return NativeThread(self.session, (self, known))

    def forget(self) -> None:
        self._packed.forget()

    def close(self) -> None:
        self.session.close()
        self._held.clear()


class NativeThread:
    """A submitter that runs sessions; `keep` is what they use."""

    def __init__(self, session: Session, keep: Any) -> None:
        self._submitter = session.submitter()
        self._submitter.start(keep)
        self.leave = self._submitter.leave

    def post(self, engine: Native, fence: Fence, numbers: Mapping[str, int | float]) -> None:
        fence.begin(self._submitter, self._submitter.next)
        engine.session.post(self._submitter, "main", numbers)


class Reference:
    """The graph by its ops' references: slow, and what the native program is compared with."""

    def __init__(
        self, graph: Graph, ports: tuple[PortDesc, ...], values: Mapping[str, Array]
    ) -> None:
        self._graph = graph
        self._ports = {p.name: p for p in ports}
        self._values = dict(values)
        self._bound: dict[str, Array] = {}

    def bind(self, name: str, bound: Bound) -> None:
        self._bound[name] = bound.array

    def run(self, numbers: Mapping[str, int | float]) -> None:
        values: dict[str, Any] = {**self._values, **numbers}
        for name, array in self._bound.items():
            port = self._ports[name]
            if port.kind == "state" and port.layout != "rows":
                quantised = port.dtype == "q8_0"
                value = from_pages(array, port.layout, "q8_0" if quantised else "")
                values[name] = value.view(CacheArray) if quantised else value
            elif port.kind != "output":
                values[name] = array
            if port.kind == "weight" and array.dtype == np.uint8:
                values[name] = QuantArray(port.dtype, port.shape, array)
        result = interpret(self._graph, values)
        for name, value in result.outputs.items():
            self._bound[name][...] = value
        for name, value in result.states.items():
            layout = self._ports[name].layout
            place = cache_pages if self._ports[name].dtype == "q8_0" else to_pages
            self._bound[name][...] = value if layout == "rows" else place(value, layout)

    def submitter(self, known: Any) -> PythonThread:
        return PythonThread()

    def forget(self) -> None:
        """Nothing is kept of what was bound."""

    def close(self) -> None:
        self._bound.clear()


class PythonThread:
    """The same for what is interpreted: a turn is an event."""

    def __init__(self) -> None:
        self.job: Any = None  # the last that was posted
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()
        threading.Thread(
            target=_serve, args=(self, self._wake), name="lanewise-submit", daemon=True
        ).start()

    def post(self, engine: Reference, fence: Fence, numbers: Mapping[str, int | float]) -> None:
        turn = threading.Event()
        fence.begin(self, turn)
        self.job = (engine, fence, numbers, turn)
        self._wake.put(True)

    def posted(self, turn: threading.Event) -> bool:
        if self.job is None or self.job[3] is not turn:
            return False
        self._wake.put(True)  # that may have been broken off
        return True

    def ended(self, turn: threading.Event) -> bool:
        return turn.is_set()

    def wait(self, turn: threading.Event, seconds: float) -> bool:
        return turn.wait(seconds)

    def leave(self) -> None:
        self._wake.put(False)


def _serve(thread: PythonThread, wake: queue.SimpleQueue[bool]) -> None:
    last = None
    while wake.get():
        if thread.job is not last:
            last = thread.job
            engine, fence, numbers, turn = last
            fence.error = failure(engine.run, numbers)
            turn.set()


__all__ = ["PAGE", "Native", "Packed", "Reference"]
