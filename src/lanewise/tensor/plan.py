"""Plan: a compiled graph, run as often as one likes on buffers that the caller names.

Laws: a submission gives every port and scalar; the whole set is checked before anything is bound,
and a set that is refused changes nothing; a failure comes back through the fence.  Buffers are
used where they are, and must stay alive and untouched until the fence is done (the plan holds a
reference).  As many submissions are in flight as the plan has instances, one by default: the next
is refused, never queued.  A fork's child runs none of them: there their fences end as RunError
``run.forked``, and the plan is free.  A matrix of a product is packed when another object is bound
as its weight: after changing a bound weight in place, call `repack`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lanewise.closing import Closing
from lanewise.errors import LanewiseError, RunError, call_site, collect, placed
from lanewise.ir.graph import ROOTS, Graph
from lanewise.runtime.pool import on_fork
from lanewise.tensor.binding import NOTHING, Bound, Last, Table
from lanewise.tensor.buffers import Bindings
from lanewise.tensor.fence import Fence, failure
from lanewise.tensor.handles import KernelSelection, PortDesc, ScalarDesc

if TYPE_CHECKING:
    from lanewise.plan.plan import Memory
    from lanewise.plan.plan import Plan as Compiled
    from lanewise.plan.program import Program
    from lanewise.tensor.runtime import Runtime


@dataclass(eq=False)
class Instance:
    """One submission's own memory: an engine, what is bound to it, a thread that runs it."""

    engine: Any
    known: dict[str, Bound] = field(default_factory=dict[str, Bound])
    last: Last = NOTHING  # of what `known` was last filled with
    fixed: Bindings | None = None  # what of that need not be looked at again
    bound: Mapping[str, Bound] | None = None  # by the submission in flight
    claimed: bool = False  # somebody binds, or runs it
    fence: Fence | None = None  # of the last submission
    thread: Any = None

    @property
    def free(self) -> bool:
        return not self.claimed and (self.fence is None or self.fence.done)

    def bind(self, changed: Mapping[str, Bound]) -> None:
        """Bind what changed; should that fail half way, nothing is known as a whole."""
        self.last, self.fixed = NOTHING, None
        for name, bound in changed.items():
            self.engine.bind(name, bound)
            self.known[name] = bound

    def start(self, fence: Fence, numbers: Mapping[str, int | float]) -> None:
        """Begin a submission; it is this instance's from now on."""
        try:
            if self.thread is None:
                self.thread = self.engine.submitter(self.known)
                # a plan that is dropped, not closed, leaves no thread behind
                weakref.finalize(self, self.thread.leave)
            self.fence = fence
            self.thread.post(self.engine, fence, numbers)
        except BaseException:  # Ctrl-C, at any place
            fence.broken()
            raise

    def close(self) -> None:
        if self.thread is not None:
            self.thread.leave()
        self.engine.close()
        self.known.clear()


@dataclass(frozen=True)
class Recorded:
    """What a plan was compiled from, and into; `limits`: live scalar -> capacity."""

    graph: Graph
    ports: tuple[PortDesc, ...]
    scalars: tuple[ScalarDesc, ...]
    identity: str
    label: str
    checks: tuple[Any, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict[str, int])
    program: Program | None = None
    compiled: Compiled | None = None


class Plan(Closing):
    """A compiled graph; a context manager.  `Builder.compile` makes one."""

    _again = "compile in each process: what was built is kept on disk"

    def __init__(self, runtime: Runtime, recorded: Recorded, engines: list[Any]) -> None:
        self._runtime = runtime
        self._recorded = recorded
        self._table = Table(recorded.ports, recorded.scalars)
        self._all = tuple(Instance(e) for e in engines)
        self._closed = False
        self._lock = threading.Lock()
        on_fork(self)

    def after_fork(self) -> None:
        """In a child process no submission of the parent's runs on: end their fences."""
        self._lock = threading.Lock()
        for instance in self._all:
            # what was being bound, and the thread, are the parent's
            instance.known.clear()
            instance.last, instance.fixed = NOTHING, None
            instance.thread = None
            instance.claimed = False
            if instance.fence is not None and not instance.fence.done:
                instance.fence.finish(RunError(
                    "run.forked", f"plan {self.label!r}: the process was forked while this "
                    "submission was in flight, and only the parent goes on with it",
                    place=self.label, remedy="submit it again here; what it writes is incomplete",
                ))  # fmt: skip

    # -- what it is -------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        return self._recorded.label

    @property
    def identity(self) -> str:
        """The identity of the graph that it was compiled from."""
        return self._recorded.identity

    @property
    def graph(self) -> Graph:
        return self._recorded.graph

    @property
    def ports(self) -> tuple[PortDesc, ...]:
        """Every buffer that a submission binds, in the order of declaration."""
        return self._recorded.ports

    @property
    def scalars(self) -> tuple[ScalarDesc, ...]:
        """Every number that a submission gives, in the order of declaration."""
        return self._recorded.scalars

    def _compiled(self) -> Compiled:
        if self._recorded.compiled is None:
            raise RunError("run.reference", "the reference has no plan of launches",
                           place=call_site(), remedy='compile for Runtime("cpu")')  # fmt: skip
        return self._recorded.compiled

    @property
    def program(self) -> Program:
        """The program; ``program.text`` is its source."""
        self._compiled()
        assert self._recorded.program is not None
        return self._recorded.program

    @property
    def memory(self) -> Memory:
        """Bytes of intermediates: ``unshared`` without sharing, ``lower_bound`` the most alive at
        once, ``allocated``; ``private`` and ``scratch`` per thread."""
        return self._compiled().memory

    @property
    def selections(self) -> tuple[KernelSelection, ...]:
        """Which kernel each op, or group of ops, became, and why."""
        compiled = self._compiled()
        found: list[KernelSelection] = []
        for index, s in compiled.selections:
            node = compiled.graph.nodes[index]
            body = node.body.nodes if node.body is not None else (node,)
            name = " ".join(n.op for n in body if n.op not in ROOTS)
            found.append(KernelSelection(name, s.kernel, s.why, s.rejected))
        return tuple(found)

    def explain(self) -> str:
        """The plan as text: launches with kernel, reason and bytes; rules fired; memory."""
        return self._compiled().explain()

    # -- running ----------------------------------------------------------------------------------

    def submit(
        self, bindings: Mapping[str, Any] | None = None, /, *arrays: Any, **more: Any
    ) -> Fence:
        """Start a run and return at once.

        Ports take arrays (or DLPack objects, buffers, `Runtime.buffer`), scalars numbers, by
        name; `Bindings` are those that many submissions share.  All that is refused comes by the
        fence: RunError ``run.missing``, ``.extra``, ``.dtype``, ``.shape``, ``.strides``,
        ``.readonly``, ``.alignment``, ``.kind``, ``.overlap``, ``.closed``, ``.scalar``,
        ``.data`` (strict), ``.busy``, or several as `Refused`.
        """
        fence = Fence()
        try:
            instance, numbers = self._begin(bindings, arrays, more)
        except LanewiseError as error:
            fence.finish(placed(error, call_site()))
            return fence

        try:
            instance.start(fence, numbers)
        except LanewiseError as error:
            fence.finish(placed(error, call_site()))
        finally:
            instance.claimed = False
        return fence

    def run(
        self, bindings: Mapping[str, Any] | None = None, /, *arrays: Any, **more: Any
    ) -> None:
        """Run on the caller's thread and return at the end; raises as `Fence.wait`."""
        try:
            instance, numbers = self._begin(bindings, arrays, more)
        except LanewiseError as refused:
            raise placed(refused, call_site()) from None
        try:
            error = failure(instance.engine.run, numbers, place=self.label)
        finally:
            instance.claimed = False
        if error is not None:
            raise error

    def _begin(
        self, bindings: Mapping[str, Any] | None, arrays: tuple[Any, ...], more: Mapping[str, Any]
    ) -> tuple[Instance, dict[str, int | float]]:
        if arrays or (bindings is not None and not isinstance(bindings, Mapping)):
            names = [*self._table.ports, *self._table.scalars]
            raise RunError(
                "run.kind", f"bindings is {type(bindings).__name__}, no mapping" if not arrays else
                f"{len(arrays) + 1} arrays are given by place", remedy="everything is bound by "
                f"name, plan.submit(x=xs) or plan.submit({{'x': xs}}): {', '.join(names)}",
            )  # fmt: skip
        instance = None
        try:
            with self._lock:
                instance = self._claim()
            if bindings is not None and bindings is instance.fixed:
                begun = self._rest(instance, more)
                if begun is not None:
                    return instance, begun
            given = {**bindings, **more} if bindings else more
            changed, numbers = self._table.check(given, instance.known, instance.last)
            self._limits(given, numbers)
            if len(self._all) > 1:
                self._apart(instance, {**instance.known, **changed})
            if changed:
                last = instance.last
                instance.bind(changed)
                instance.last = self._table.good(given, last)
            if type(bindings) is Bindings and not self._runtime.strict:
                whole = len(given) == len(bindings) + len(more)
                instance.fixed = bindings if whole and self._table.lasting(bindings) else None
        except BaseException:
            if instance is not None:
                instance.claimed = False
            raise
        return instance, numbers

    def _rest(
        self, instance: Instance, more: Mapping[str, Any]
    ) -> dict[str, int | float] | None:
        """Bind the rest of a set whose fixed part is bound; None where that has to be looked at
        as a whole (`more` names a fixed one, or is refused)."""
        fixed = instance.fixed
        assert fixed is not None
        if any(name in fixed for name in more):
            return None
        try:
            changed, numbers = self._table.check(more, instance.known, NOTHING, len(fixed))
        except LanewiseError:
            return None
        self._limits(more, numbers)
        if len(self._all) > 1:
            self._apart(instance, {**instance.known, **changed})
        if changed:
            instance.bind(changed)
            instance.fixed = fixed
        return numbers

    def _claim(self) -> Instance:
        if self._closed:
            raise RunError("run.closed", f"plan {self.label!r} was closed",
                           remedy="compile it again")  # fmt: skip
        for instance in self._all:
            if instance.free:
                instance.claimed, instance.bound = True, None
                return instance
        raise RunError(
            "run.busy", f"plan {self.label!r}: a submission is in flight", remedy="wait "
            f"for its fence, or compile with max_in_flight={len(self._all) + 1}",
        )  # fmt: skip

    def _apart(self, instance: Instance, bound: Mapping[str, Bound]) -> None:
        """Refuse what a submission in flight writes, or what is written while it reads."""
        with self._lock:
            for other in self._all:
                if other is not instance and other.bound is not None and not other.free:
                    collect(self._table.crossing(bound, other.bound))
            instance.bound = bound

    def _limits(self, given: Mapping[str, Any], numbers: Mapping[str, int | float]) -> None:
        for name, capacity in self._recorded.limits.items():
            if numbers[name] > capacity:
                raise RunError("run.scalar", f"{name!r} is {numbers[name]}, the capacity is "
                               f"{capacity}", remedy="split the rows into several submissions")
        if self._runtime.strict:
            from lanewise.tensor.strict import check_data

            check_data(self._recorded.checks, self._table.ports, {**given, **numbers})

    def _busy(self, remedy: str) -> RunError:
        return RunError("run.busy", f"plan {self.label!r}: a submission is in flight",
                        place=call_site(), remedy=remedy)  # fmt: skip

    def repack(self, *names: str) -> None:
        """Take bound weights anew (all, or the named ones): their bytes were changed in place."""
        with self._lock:
            if not all(i.free for i in self._all):
                raise self._busy("wait for its fence")
            wrong = [n for n in names if n not in self._table.ports]
            if wrong:
                raise RunError(
                    "run.extra", f"plan {self.label!r} has no port {wrong[0]!r}",
                    place=call_site(), remedy=f"it has: {', '.join(self._table.ports)}",
                )  # fmt: skip
            for instance in self._all:
                instance.last, instance.fixed = NOTHING, None
                for name in names or tuple(instance.known):
                    instance.known.pop(name, None)
                instance.engine.forget()

    def close(self) -> None:
        """Give the plan's memory back; may be called again.  Raises RunError ``run.busy`` while a
        submission is in flight."""
        with self._lock:
            if self._closed:
                return
            if not all(i.free for i in self._all):
                raise self._busy("wait for its fence, then close")
            self._closed = True
        for instance in self._all:
            instance.close()
        self._runtime.forget(self)
