"""Runtime: a target, its threads, and the plans that were compiled for it.

Laws: safe from many threads; closing is refused while a plan is open; "cpu" compiles for this
machine, "reference" interprets the graph (for tests and for debugging a model).
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from lanewise.closing import Closing
from lanewise.dtypes import dtype
from lanewise.errors import RunError, UsageError
from lanewise.tensor.binding import Buffer, aligned
from lanewise.tensor.builder import Builder
from lanewise.tensor.handles import PortDesc
from lanewise.tensor.plan import Plan, Recorded

TARGETS = ("cpu", "reference")


class Runtime(Closing):
    """A target to compile for; a context manager.

    ``threads``: how many a run takes (default: the CPUs of this process).  ``strict``: look at
    ids, pages and draws at every submission, and refuse what a kernel would treat as absent.
    Raises UsageError ``usage.target``.
    """

    def __init__(
        self, target: str = "cpu", *, threads: int | None = None, strict: bool = False
    ) -> None:
        if target not in TARGETS:
            raise UsageError("usage.target", f"there is no target {target!r}",
                             remedy=f"one of: {', '.join(TARGETS)}")  # fmt: skip
        self.target = target
        self.threads = threads
        self.strict = strict
        self._plans: weakref.WeakSet[Plan] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._closed = False

    def builder(self, name: str = "graph") -> Builder:
        """A new recording.  Raises RunError ``run.closed``."""
        self._open()
        return Builder(self, name)

    def buffer(self, kind: Any, shape: tuple[int, ...]) -> Buffer:
        """Zeroed 64-aligned memory of a dtype and shape; binds as an array does."""
        self._open()
        numpy = dtype(kind).numpy
        count = 1
        for d in shape:
            count *= d
        return Buffer(aligned(count * numpy.itemsize).view(numpy).reshape(shape))

    def _open(self) -> None:
        if self._closed:
            raise RunError("run.closed", "the runtime was closed", remedy="make a new one")

    @property
    def description(self) -> str:
        """The target by its full name: "cpu-avx512", "reference"."""
        if self.target == "reference":
            return "reference"
        from lanewise.targets.cpu import cpu_target

        return cpu_target().name

    def compile(
        self, builder: Builder, *, label: str = "", activations: str = "int8x2",
        hold: tuple[str, ...] | str = (), naive: bool = False, max_in_flight: int = 1,
    ) -> Plan:  # fmt: skip
        """The plan of a recording.

        ``activations``: recipe of products with quantised weights, "int8x2", "int8" or "f32";
        ``hold``: fusion rules held back; ``naive``: no sharing of memory, a barrier everywhere
        (the same bits); ``max_in_flight``: submissions at once; ``label`` is said in errors.
        Raises every refusal of the recording, UsageError ``usage.*``, PlanError, BuildError.
        """
        from lanewise.pipeline import Options, parse_hold

        self._open()
        if max_in_flight < 1:
            raise UsageError("usage.option", f"max_in_flight is {max_in_flight}",
                             remedy="1 or more")  # fmt: skip
        options = Options(activations, parse_hold(hold), naive)
        recorded, engines = self._engines(builder, label, options, max_in_flight)
        plan = Plan(self, recorded, engines)
        with self._lock:
            self._open()
            self._plans.add(plan)
        return plan

    def _engines(
        self, builder: Builder, label: str, options: Any, count: int
    ) -> tuple[Recorded, list[Any]]:
        from lanewise.tensor.engines import Native, Packed, Reference
        from lanewise.tensor.lowering import port_layouts

        graph = builder.graph()
        identity = str(builder.identity())
        layouts = port_layouts(builder)
        ports = tuple(
            PortDesc(p.name, p.kind, p.dtype, p.shape, layouts.get(p.name, "rows"))
            for p in builder.ports
        )
        common: dict[str, Any] = {
            "graph": graph, "ports": ports, "scalars": tuple(builder.scalars),
            "identity": identity, "label": label or builder.name,
            "checks": tuple(builder.checks), "limits": _limits(graph),
        }  # fmt: skip
        values = dict(builder.values)
        if self.target == "reference":
            return Recorded(**common), [Reference(graph, ports, values) for _ in range(count)]
        from lanewise.pipeline import compile_forms
        from lanewise.runtime.build import build
        from lanewise.runtime.library import Library
        from lanewise.targets.cpu import cpu_target

        target = cpu_target()
        program, plans = compile_forms({"main": graph}, options, target=target.name)
        library = Library(build(program, target))
        packed = Packed(program, target)
        engines: list[Any] = [
            Native(program, library, values, packed, self.threads) for _ in range(count)
        ]
        return Recorded(**common, program=program, compiled=plans["main"]), engines

    def forget(self, plan: Plan) -> None:
        """A plan was closed."""
        with self._lock:
            self._plans.discard(plan)

    def close(self) -> None:
        """May be called again.  Raises RunError ``run.open_plans`` while plans are open."""
        with self._lock:
            left = sorted(p.label for p in self._plans)
            if left:
                raise RunError("run.open_plans", f"plans are open: {', '.join(left)}",
                               remedy="close them first")  # fmt: skip
            self._closed = True


def _limits(graph: Any) -> dict[str, int]:
    """Scalar that counts live rows -> the least capacity that it counts."""
    found: dict[str, int] = {}
    for _, node in graph.roots("input"):
        name = node.attributes.get("live", "")
        if name:
            rows = node.types[0].shape[0]
            found[name] = min(rows, found.get(name, rows))
    return found
