"""Runtime: a target, its threads, and the plans that were compiled for it.

Laws: safe from many threads; closing is refused while a plan is open; "cpu" compiles for this
machine, "reference" interprets the graph (for tests and for debugging a model).
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Never

from lanewise.closing import Closing
from lanewise.dtypes import dtype
from lanewise.errors import LanewiseError, RunError, UsageError, call_site, placed
from lanewise.runtime.memory import require
from lanewise.runtime.pool import check_threads, on_fork
from lanewise.tensor.arguments import plain
from lanewise.tensor.buffers import Buffer, aligned
from lanewise.tensor.builder import Builder
from lanewise.tensor.habits import absent
from lanewise.tensor.handles import PortDesc, short
from lanewise.tensor.plan import Plan, Recorded

if TYPE_CHECKING:
    from lanewise.pipeline import Options

TARGETS = ("cpu", "reference")


class Runtime(Closing):
    """A target to compile for; a context manager.

    ``threads``: how many a run takes (default: the CPUs of this process).  ``strict``: look at
    ids, pages and draws at every submission, and refuse what a kernel would treat as absent.
    Raises UsageError ``usage.target``.
    """

    _again = "make one in each process: what was built is kept on disk"

    def __init__(
        self, target: str = "cpu", *, threads: int | None = None, strict: bool = False
    ) -> None:
        if target not in TARGETS:
            raise UsageError("usage.target", f"there is no target {target!r}", place=call_site(),
                             remedy=f"one of: {', '.join(TARGETS)}")  # fmt: skip
        if threads is not None:
            _check_threads(threads)
        if not isinstance(strict, bool):
            raise _option(f"strict is {strict!r}", "True or False")
        self.target = target
        self.threads = threads
        self.strict = strict
        self._plans: weakref.WeakSet[Plan] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._closed = False
        on_fork(self)

    def after_fork(self) -> None:
        """In a child process nobody holds the lock, or walks over the plans."""
        self._lock = threading.Lock()
        self._plans = weakref.WeakSet(self._plans)

    def builder(self, name: str = "graph") -> Builder:
        """A new recording.  Raises RunError ``run.closed``, UsageError ``usage.option``."""
        self._open()
        if not isinstance(name, str):
            raise _option(f"a builder's name is {name!r}", "a string")
        return Builder(self, name)

    def buffer(self, kind: Any, shape: tuple[int, ...]) -> Buffer:
        """Zeroed 64-aligned memory of a dtype and shape; binds as an array does.  Raises
        UsageError ``usage.dtype``, ``usage.shape``, RunError ``run.memory``."""
        self._open()
        try:
            numpy = dtype(kind).numpy
        except LanewiseError as error:
            raise placed(error, call_site()) from None
        dims = plain((shape,) if isinstance(shape, int) else shape)
        if not isinstance(dims, tuple) or not all(type(d) is int and d > 0 for d in dims):
            raise UsageError("usage.shape", f"a buffer of shape {shape!r}", place=call_site(),
                             remedy="a tuple of positive integers")  # fmt: skip
        shape, count = dims, math.prod(dims)
        try:
            require(count * numpy.itemsize, "a buffer")
        except LanewiseError as error:
            raise placed(error, call_site()) from None
        return Buffer(aligned(count * numpy.itemsize).view(numpy).reshape(shape))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise absent(self, name)

    def _open(self) -> None:
        if self._closed:
            raise RunError("run.closed", "the runtime was closed", place=call_site(),
                           remedy="make a new one")  # fmt: skip

    @property
    def description(self) -> str:
        """The target by its full name: "cpu-avx512", "reference"."""
        if self.target == "reference":
            return "reference"
        from lanewise.targets.cpu import cpu_target

        return cpu_target().name

    def compile(
        self, builder: Builder, *, label: str = "", activations: str = "int8x2",
        hold: Iterable[str] | str = (), naive: bool = False, max_in_flight: int = 1,
        **others: Never,
    ) -> Plan:  # fmt: skip
        """The plan of a recording.

        ``activations``: recipe of products with quantised weights, "int8x2", "int8" or "f32";
        ``hold``: fusion rules held back; ``naive``: no sharing of memory, a barrier everywhere
        (the same bits); ``max_in_flight``: submissions at once; ``label`` is said in errors.
        Raises every refusal of the recording, UsageError ``usage.*``, PlanError, BuildError.
        """
        self._open()
        if not isinstance(builder, Builder):
            raise _option(f"what is compiled is {short(builder)}", "a builder: rt.builder()")
        if not isinstance(label, str):
            raise _option(f"label is {label!r}", "a string, said in errors")
        options, count = self.options(
            activations=activations, hold=hold, naive=naive, max_in_flight=max_in_flight, **others
        )
        recorded, engines = self._engines(builder, label, options, count)
        plan = Plan(self, recorded, engines)
        with self._lock:
            closed = self._closed
            if not closed:
                self._plans.add(plan)
        if closed:  # by another thread, while this one compiled
            plan.close()
            self._open()
        return plan

    def options(
        self, *, activations: str = "int8x2", hold: Iterable[str] | str = (),
        naive: bool = False, max_in_flight: int = 1, **others: Never,
    ) -> tuple[Options, int]:  # fmt: skip
        """(what decides the program, submissions at once) of the options of `compile`; two calls
        that mean the same are equal.  Raises UsageError ``usage.*``."""
        from lanewise.fuse.numerics import ACTIVATIONS
        from lanewise.pipeline import Options, parse_hold

        for name, value in others.items():
            runtimes = name in ("threads", "strict", "target")
            raise _option(f"compile has no option {name!r}", "it is the runtime's: "
                          f"Runtime({name}={value!r})" if runtimes else "its options are "
                          "activations, hold, naive, max_in_flight, label")  # fmt: skip
        if activations not in ACTIVATIONS:
            raise UsageError(
                "usage.activations", f"activations is {activations!r}", place=call_site(),
                remedy=f"one of: {', '.join(ACTIVATIONS)}",
            )  # fmt: skip
        if not isinstance(naive, bool):
            raise _option(f"naive is {naive!r}", "True or False")
        if type(max_in_flight) is not int or max_in_flight < 1:
            raise _option(f"max_in_flight is {max_in_flight!r}", "an integer from 1")
        try:
            held = parse_hold(hold)
        except TypeError:
            raise _option(f"hold is {hold!r}",
                          "names of rules: hold=('elementwise_chain',)") from None  # fmt: skip
        except LanewiseError as error:
            raise placed(error, call_site()) from None
        return Options(activations, held, naive), max_in_flight

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
                               place=call_site(), remedy="close them first")  # fmt: skip
            self._closed = True


def _option(what: str, remedy: str) -> UsageError:
    return UsageError("usage.option", what, place=call_site(), remedy=remedy)


def _check_threads(threads: int) -> None:
    try:
        if not isinstance(threads, int) or isinstance(threads, bool):
            raise TypeError
        check_threads(threads)
    except LanewiseError as error:
        raise placed(error, call_site()) from None
    except TypeError:
        raise RunError("run.threads", f"threads is {threads!r}", place=call_site(),
                       remedy="an integer from 1") from None  # fmt: skip


def _limits(graph: Any) -> dict[str, int]:
    """Scalar that counts live rows -> the least capacity that it counts."""
    found: dict[str, int] = {}
    for _, node in graph.roots("input"):
        name = node.attributes.get("live", "")
        if name:
            rows = node.types[0].shape[0]
            found[name] = min(rows, found.get(name, rows))
    return found
