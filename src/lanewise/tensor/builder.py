"""Builder: records one graph, op by op, and collects what it refuses.

Laws: no op raises; a mistake is one refusal, with the op, the operand, the author's file and line
and the remedy, and gives a poisoned tensor; what takes poison is poisoned in silence; a missing
argument is noticed before the poison.  `compile` raises every refusal together.  A builder
belongs to one thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lanewise.closing import OfThisProcess
from lanewise.dtypes import DType, known_as
from lanewise.errors import GraphError, LanewiseError, UsageError, call_site, collect
from lanewise.ir.builder import GraphBuilder
from lanewise.ir.graph import Graph, Node, Ref, Type
from lanewise.ir.opdef import opdef
from lanewise.ir.ops.rules import BLOCKS, SCALARS, SMALL
from lanewise.ir.states import overlap
from lanewise.ir.verify import MAX_SIZE
from lanewise.tensor.constants import held
from lanewise.tensor.habits import absent
from lanewise.tensor.handles import PortDesc, ScalarDesc, State, Tensor, ValueDesc, short
from lanewise.tensor.remedies import renamed, undeclared

if TYPE_CHECKING:
    from lanewise.tensor.identity import Identity
    from lanewise.tensor.plan import Plan
    from lanewise.tensor.runtime import Runtime
    from lanewise.tensor.strict import Check

POISON = Type("f32", (1,))
ARITHMETIC = ("add", "sub", "mul", "div", "maximum", "minimum")
NAME = "a string that is not empty, of one line"
_CAPACITY = "; rows whose number varies have a capacity, and `live` names a scalar that counts them"
SAME: Mapping[str, str] = MappingProxyType({})

# The function that the author called, while it calls others on the author's behalf: a refusal
# says its name.
CALLED: ContextVar[str] = ContextVar("called", default="")


def _named(name: object) -> bool:
    return isinstance(name, str) and name.isprintable() and name != ""


class Builder(OfThisProcess):
    """Records a graph for a runtime; `Runtime.builder(name)` makes one."""

    def __init__(self, runtime: Runtime, name: str = "graph") -> None:
        from lanewise.tensor.runtime import Runtime

        if not isinstance(runtime, Runtime) or not isinstance(name, str):
            raise UsageError("usage.option", f"a builder of {short(runtime)}, {short(name)}",
                             place=call_site(), remedy='rt = t.Runtime("cpu"), then '
                             'rt.builder("name")')  # fmt: skip
        self.runtime = runtime
        self.name = name
        self.graph_builder = GraphBuilder(name)
        self.ports: list[PortDesc] = []
        self.scalars: list[ScalarDesc] = []
        self.values: dict[str, NDArray[Any]] = {}  # constants, by the name of their root
        self.checks: list[Check] = []
        self.weights: dict[Ref, str] = {}
        self._errors: list[LanewiseError] = []
        self._scalar_refs: dict[str, tuple[Ref, str]] = {}
        self._writes: dict[str, list[tuple[int, tuple[int, ...], str, str]]] = {}
        self._constants: dict[str, Ref] = {}
        self._told = False  # its refusals were raised once

    _again = "record in each process: an identity is the same in all"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise absent(self, name)

    # -- refusals ---------------------------------------------------------------------------------

    def refuse(self, code: str, message: str, remedy: str, place: str = "") -> None:
        """Collect one refusal at the author's line; the remedy is what to write instead."""
        outer, inner = CALLED.get(), re.match(r"\w+(?=: )", message)
        if outer and inner is not None and inner[0] != outer:
            message = outer + message[inner.end() :]
            remedy = re.sub(rf"\b{inner[0]}\(", f"{outer}(", remedy)
        self._errors.append(
            GraphError(f"graph.{code}", message, place=place or call_site(), remedy=remedy)
        )

    def refuse_missing(self, op: str, name: str) -> None:
        """An operand is None."""
        if op in ARITHMETIC and self.scalars:
            self.refuse("operand", f"{op}: {name} is None, which is what b.scalar returns: a "
                        "scalar is named, it is no tensor",
                        f't.scale(x, "{self.scalars[-1].name}") multiplies by it; the other '
                        "ops take a tensor: b.constant(number), or b.input of (1,)")  # fmt: skip
            return
        self.refuse("missing_operand", f"{op}: {name} is missing", f"give {op} its {name}")

    def errors(self) -> tuple[LanewiseError, ...]:
        """Every refusal so far, in order."""
        return tuple(self._errors)

    def poison(self, *like: Any) -> Tensor:
        types = [x.type for x in like if isinstance(x, Tensor | State)]
        return Tensor(self, None, types[0] if types else POISON)

    # -- declarations -----------------------------------------------------------------------------

    def _type(self, what: str, dtype: Any, shape: Any, formats: bool) -> Type | None:
        name = dtype.name if isinstance(dtype, DType) else dtype
        state = what.startswith("state")
        known = name in SCALARS or (formats and name in BLOCKS) or (state and name == "q8_0")
        if not known or (state and name in SMALL):
            kinds = [k for k in SCALARS if not state or k not in SMALL]
            own = f"write {o!r}; " if (o := known_as(name)) in kinds else ""
            if isinstance(name, str) and formats and name.lower() in BLOCKS:
                own = f"write {name.lower()!r}; "
            if isinstance(dtype, tuple | list):
                own = "the order is name, dtype, shape; "
            if isinstance(name, str) and name in BLOCKS:
                own = "formats are for b.weight, and caches of q8_0; "
            why = ", which no state holds" if name in SMALL else ""
            kinds += [f"or a format: {', '.join(BLOCKS)}"] if formats else []
            self.refuse("dtype", f"{what} has dtype {name!r}{why}",
                        f"{own}one of {', '.join(kinds)}")  # fmt: skip
            return None
        if isinstance(shape, int | np.integer):
            shape = (int(shape),)
        dims: tuple[Any, ...] = tuple(shape) if isinstance(shape, Sequence) else ()
        good = all(isinstance(d, int | np.integer) and not isinstance(d, bool) and d > 0
                   for d in dims)  # fmt: skip
        if not dims or not good:
            if isinstance(shape, np.ndarray) and shape.dtype.kind == "f":
                self.refuse("shape", f"{what} is given an array in place of a shape",
                            f"{shape.shape}: the array itself is bound with each run")
                return None
            varying = any(d in (None, -1) or isinstance(d, str) for d in dims)
            self.refuse("shape", f"{what} has shape {shape!r}", "a tuple of positive integers; a "
                        f"scalar is (1,){_CAPACITY if varying else ''}")  # fmt: skip
            return None
        if state and (len(dims) < 3 or dims[-1] % 32) and name == "q8_0":
            self.refuse("shape", f"{what} has shape {shape!r}; a cache of 8 bits is [capacity, kv "
                        "heads, width], width a multiple of 32", "another width, or f16")
            return None
        type = Type(name, tuple(int(d) for d in dims))
        block, width = BLOCKS.get(name, 1), type.shape[-1]
        if width % block:
            self.refuse("shape", f"{what} is {type}; rows of {name} are blocks of {block}",
                        f"rows of {-(-width // block) * block} elements, or another format")
            return None
        return None if self._huge(what, type) else type

    def _huge(self, what: str, type: Type) -> bool:
        if type.size > MAX_SIZE:
            self.refuse("shape", f"{what} is {type}: more than 2^40 elements",
                        "a smaller shape")  # fmt: skip
        return type.size > MAX_SIZE

    def _declare(
        self, kind: str, name: Any, dtype: Any, shape: Any, **attrs: Any
    ) -> tuple[Ref | None, Type]:
        type = self._type(f"{kind} {name!r}", dtype, shape, kind == "weight")
        if type is None:
            return None, POISON
        if not _named(name):
            self.refuse("name", f"{kind} {name!r} has no name", NAME)
            return None, type
        if any(p.name == name for p in self.ports) or any(s.name == name for s in self.scalars):
            self.refuse("duplicate_name", f"two ports are named {name!r}", "rename one of them")
            return None, type
        op = {"state": "state", "weight": "weight" if type.dtype in BLOCKS else "input"}
        try:
            ref = self.graph_builder.root(op.get(kind, "input"), name, type, **attrs)
        except GraphError as error:
            self.refuse(error.code.removeprefix("graph."), error.message, error.remedy)
            return None, type
        self.ports.append(PortDesc(name, kind, type.dtype, type.shape))
        return ref, type

    def input(self, name: str, dtype: Any, shape: Any, *, live: str = "") -> Tensor:
        """A buffer that changes with every submission; ``live`` names a declared u32 scalar: the
        count of live rows of the leading axis, later ones are skipped."""
        known = self._scalar_refs.get(live) if isinstance(live, str) else None
        if live != "" and (known is None or known[1] != "u32"):
            said = live if isinstance(live, str) else "n"
            self.refuse("live", f"input {name!r}: live is {short(live)}, no u32 scalar",
                        f"b.scalar({said!r}, 'u32') before the input, and live={said!r}")
            return self.poison()
        return Tensor(self, *self._declare("input", name, dtype, shape, live=live))

    def weight(self, name: str, dtype: Any, shape: Any) -> Tensor:
        """A read-only buffer that submissions may rebind; ``dtype`` may be a checkpoint format
        ("q4_1"): the buffer then holds its rows [N, K]."""
        ref, type = self._declare("weight", name, dtype, shape)
        if ref is not None:
            self.weights[ref] = name
        return Tensor(self, ref, type)

    def declare_input(self, desc: ValueDesc) -> Tensor:
        """`input`, of a description."""
        return self._described(desc, self.input)

    def declare_weight(self, desc: ValueDesc) -> Tensor:
        """`weight`, of a description."""
        return self._described(desc, self.weight)

    def _described(self, desc: Any, declare: Callable[..., Tensor]) -> Tensor:
        if isinstance(desc, ValueDesc):
            return declare(desc.name, desc.dtype, desc.shape)
        self.refuse("operand", f"a description is {short(desc)}", "ValueDesc(name, dtype, shape)")
        return self.poison()

    def constant(self, array: Any, name: str = "") -> Tensor:
        """Numbers that the author holds: part of the plan (and of its identity), no port.

        Python floats, and lists of them, are rounded to f32; Python integers, and int64 arrays,
        become u32.  An array keeps its numbers: float64 that f32 does not hold exactly is refused,
        and so are integers outside 0 .. 2^32-1 and floats beyond f32 (``graph.dtype``).  One name
        is one constant: the same numbers again give the same tensor, others are refused
        (``graph.duplicate_name``).
        """
        from lanewise.ir.values import value_type

        if not isinstance(name, str):
            self.refuse("name", f"a constant's name is {short(name)}", "a string, or none")
            return self.poison()
        value = held(self, array)
        if value is None:
            return self.poison()
        type, name = value_type(value), f"constant.{name or len(self.values)}"
        known = self.values.get(name)
        if known is None:
            self._constants[name] = self.graph_builder.root("input", name, type)
            self.values[name] = value
        elif (known.dtype, known.shape, known.tobytes()) != (
            value.dtype, value.shape, value.tobytes()
        ):  # fmt: skip
            self.refuse("duplicate_name", f"{name!r} is a constant of other numbers already",
                        "rename one of them, or leave the name out")  # fmt: skip
            return self.poison()
        return Tensor(self, self._constants[name], type)

    def scalar(self, name: str, kind: str | DType = "f32") -> None:
        """Declare a number of the submission; kind "u32" or "f32".  Ops name it."""
        kind = kind.name if isinstance(kind, DType) else kind
        if kind not in ("u32", "f32"):
            own = f"write {o!r}" if (o := known_as(kind)) in ("u32", "f32") else "u32 or f32"
            self.refuse("scalar", f"scalar {name!r} has kind {kind!r}", own)
        elif not _named(name):
            self.refuse("name", f"scalar {name!r} has no name", NAME)
        elif name in self._scalar_refs or any(p.name == name for p in self.ports):
            self.refuse("duplicate_name", f"two ports are named {name!r}", "rename one of them")
        else:
            ref = self.graph_builder.root("scalar", name, Type(kind, (1,)))
            self._scalar_refs[name] = (ref, kind)
            self.scalars.append(ScalarDesc(name, kind))

    def scalar_ref(self, op: str, name: Any, kind: str) -> Tensor:
        """A declared scalar as an operand; refused if it is not declared, or of another kind."""
        found = self._scalar_refs.get(name) if isinstance(name, str) else None
        if found is None:
            self.refuse("scalar", f"{op}: no scalar {name!r} is declared",
                        f"b.scalar({name!r}, {kind!r}) before the op")  # fmt: skip
            return self.poison()
        if found[1] != kind:
            self.refuse("scalar", f"{op}: scalar {name!r} is {found[1]}, it must be {kind}",
                        f"declare it as {kind}")  # fmt: skip
            return self.poison()
        return Tensor(self, found[0], Type(kind, (1,)))

    def state(self, name: str, dtype: Any, shape: Any) -> State:
        """The caller's buffer that is read, written and carried on; the version as it comes in."""
        ref, type = self._declare("state", name, dtype, shape)
        return State(self, ref, type, name, (), 0)

    def output(self, name: str, x: Tensor) -> None:
        """Write a value into a buffer that the caller binds under this name."""
        if not isinstance(x, Tensor):
            remedy = "b.constant(array) is the tensor of an array"
            if isinstance(x, State):
                remedy = "read_state gives the tensor of a state"
            elif isinstance(x, tuple | list):
                remedy = "give each tensor of it an output of its own"
            elif isinstance(name, Tensor):
                remedy = f"the name comes first: b.output({x!r}, tensor)"
            self.refuse("operand", f"output {name!r} is {short(x)}, no tensor", remedy)
            return
        if x.ref is None:
            return
        if x.builder is not self:
            self.refuse("foreign", f"output {name!r} comes from another builder",
                        "name it there, or record what it needs here")  # fmt: skip
            return
        if not _named(name):
            self.refuse("name", f"output {name!r} has no name", NAME)
            return
        taken = [p.name for p in self.ports] + list(self._scalar_refs)
        if name in taken:
            self.refuse("duplicate_name", f"two ports are named {name!r}", "rename one of them")
            return
        self.graph_builder.output(name, x.ref)
        self.ports.append(PortDesc(name, "output", x.dtype, x.shape))

    # -- ops --------------------------------------------------------------------------------------

    def op(
        self, op: str, operands: Sequence[Any], *, strided: bool = False, as_: str = "",
        names: Mapping[str, str] = SAME, **attrs: Any,
    ) -> Tensor:  # fmt: skip
        """Apply an op with one result.  `strided`: views are taken as they are; `as_`, `names`:
        what refusals call the op, and its operands and attributes."""
        return self.multi(op, operands, strided=strided, as_=as_, names=names, **attrs)[0]

    def multi(
        self, op: str, operands: Sequence[Any], *, strided: bool = False, as_: str = "",
        names: Mapping[str, str] = SAME, results: int = 1, **attrs: Any,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """Apply an op with several results."""
        refs = self.refs(op, operands, strided, as_, names)
        if refs is not None:
            try:
                made = self.graph_builder.apply_multi(op, *refs, **attrs)
                types = [self.graph_builder.type(r) for r in made]
                if not any(self._huge(f"{as_ or op}: the result", type) for type in types):
                    return tuple(Tensor(self, r, y) for r, y in zip(made, types, strict=True))
            except GraphError as error:
                message = error.message.replace(f"{op}:", f"{as_ or op}:", 1)
                remedy = error.remedy
                turned = re.match(r"(cast|reshape|contiguous)\(", remedy)
                blamed = self._blamed(op, error, operands)
                if turned and isinstance(blamed, State):
                    remedy = "declare the state so: it is neither cast nor reshaped"
                elif isinstance(blamed, Tensor) and error.code == "graph.dtype":
                    ordered = not names and not as_ and len(operands) > 1
                    made = self.graph_builder.node(blamed.ref).op if blamed.ref else ""
                    remedy = undeclared(op if ordered else "", made, remedy)
                self.refuse(error.code.removeprefix("graph."), renamed(message, names),
                            renamed(remedy, names))  # fmt: skip
        return (self.poison(*operands),) * results

    @staticmethod
    def _blamed(op: str, error: GraphError, operands: Sequence[Any]) -> Tensor | State | None:
        """The operand that an op refuses."""
        names = [o.rstrip("?") for o in opdef(op).operands]
        name = error.message.removeprefix(f"{op}: ").partition(" ")[0]
        return operands[names.index(name)] if name in names[: len(operands)] else None

    def refs(
        self, op: str, operands: Sequence[Any], strided: bool, as_: str = "",
        known: Mapping[str, str] = SAME,
    ) -> list[Ref] | None:  # fmt: skip
        """The operands' refs; None if one was refused (now, or before)."""
        names = [known.get(n, n) for n in (o.rstrip("?").lstrip("*") for o in opdef(op).operands)]
        said = as_ or op
        for name, x in zip(names, operands, strict=False):
            if x is None:
                self.refuse_missing(said, name)
                return None
            if not isinstance(x, Tensor | State):
                self.refuse("operand", f"{said}: {name} is {short(x)}, no tensor",
                            "numbers enter by `b.constant`, as a port, or, to multiply by one of "
                            'the submission, `b.scalar("name")` and `t.scale(x, "name")`')
                return None
        if any(x.ref is None for x in operands):
            return None
        for name, x in zip(names, operands, strict=False):
            if x.builder is not self:
                for b in (self, x.builder):
                    b.refuse("foreign", f"{said}: {name} comes from another builder",
                             "a tensor belongs to the builder that made it: declare a port for "
                             "it here")  # fmt: skip
                return None
            if isinstance(x, State) and op != "layer" and not self.current(said, name, x):
                return None
            if isinstance(x, Tensor) and x.strided and not strided:
                self.refuse("strided", f"{said}: {name} is a strided view {x.type}",
                            f"pack it first: {said}(contiguous(...))")
                return None
        return [x.ref for x in operands]

    # -- states -----------------------------------------------------------------------------------

    def current(self, op: str, operand: str, state: State) -> bool:
        """Refuse a version that a later write of overlapping bytes has superseded."""
        since = [w for w in self._writes.get(state.root, ())
                 if w[0] > state.version and overlap(w[1], state.window)]
        if not since:
            return True
        behind = f"{len(since)} write{'s' if len(since) > 1 else ''} behind"
        self.refuse("stale_state", f"{op}: {operand} is version {state.version} of state "
                    f"{state.root!r}, {behind}: {since[-1][3]} at {since[-1][2]} "
                    "gave the latest", f"use the state that the latest {since[-1][3]} returned")
        return False

    def wrote(self, state: State, ref: Ref, by: str) -> State:
        """The next version after a write by the function `by`."""
        number = sum(len(w) for k, w in self._writes.items() if k == state.root) + 1
        self._writes.setdefault(state.root, []).append((number, state.window, call_site(), by))
        return State(self, ref, state.type, state.root, state.window, number)

    def layer_state(self, state: State, index: int) -> State:
        """Window `index` of a state's leading axis."""
        refs = self.refs("layer", (state,), False, "layer_state")
        if refs is not None:
            try:
                ref = self.graph_builder.apply("layer", refs[0], index=index)
                type = self.graph_builder.type(ref)
                window = (*state.window, int(index))
                return State(self, ref, type, state.root, window, state.version)
            except GraphError as error:
                self.refuse(error.code.removeprefix("graph."),
                            error.message.replace("layer:", "layer_state:"), error.remedy)
        type = Type(state.dtype, state.shape[1:] or (1,))
        return State(self, None, type, state.root, state.window, state.version)

    def next_state(
        self, op: str, state: State, *operands: Any, as_: str = "", strided: bool = False,
        names: Mapping[str, str] = SAME, **attrs: Any,
    ) -> tuple[State, tuple[Tensor, ...]]:  # fmt: skip
        """Apply an op that writes: (the next version, its other results)."""
        made = self.multi(op, (state, *operands), as_=as_, strided=strided, names=names,
                          **attrs)  # fmt: skip
        if made[0].ref is None:
            type = state.type if isinstance(state, State) else POISON
            poisoned = State(self, None, type, "", (), 0)
            return poisoned, tuple(self.poison() for _ in range(3))
        return self.wrote(state, made[0].ref, as_ or op), made[1:]

    # -- the end ----------------------------------------------------------------------------------

    def watch(self, x: Any, limit: float, what: str, other: Any = None, **more: Any) -> None:
        """Have `strict` look at a port's values: see `Check`; what no port holds goes unseen."""
        from lanewise.tensor.strict import Check

        port, bound = self._port(x), self._port(other)
        if port is not None and (other is None or bound is not None):
            live = port.attributes.get("live", "")
            name = "" if bound is None else bound.name
            self.checks.append(Check(port.name, limit, what, other=name, live=live, **more))

    def _port(self, x: Any) -> Node | None:
        """The root of a tensor that is a port as it stands."""
        if not isinstance(x, Tensor) or x.ref is None:
            return None
        node = self.graph_builder.node(x.ref)
        return node if any(p.name == node.name and p.kind == "input" for p in self.ports) else None

    def graph(self) -> Graph:
        """The recorded graph as the pipeline takes it; raises every refusal together."""
        from lanewise.tensor.lowering import lower_roots

        again = [GraphError(
            "graph.refused", f"{self.name!r} was refused before, and keeps what was refused",
            place=call_site(), remedy="record anew, in a new builder: rt.builder()",
        )] if self._told and self._errors else []  # fmt: skip
        self._told = True
        collect([*self._errors, *again])
        if not self._writes and not any(p.kind == "output" for p in self.ports):
            raise GraphError("graph.empty", f"{self.name!r} has no output and writes no state",
                             place=call_site(), remedy="b.output(name, tensor)")  # fmt: skip
        return lower_roots(self)

    def identity(self) -> Identity:
        """A digest over everything that changes what compiling gives."""
        from lanewise.tensor.identity import identity_of

        return identity_of(self)

    def compile(self, **options: Any) -> Plan:
        """The plan of the recorded graph; options as `Runtime.compile`."""
        return self.runtime.compile(self, **options)
