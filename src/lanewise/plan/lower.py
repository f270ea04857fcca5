"""From a fused graph to launches over arrays: every node's kernel is selected here.

Views cost nothing: a reshape, a layer of a state and a next version of it share the bytes of
what they came from.  A node without a kernel is inlined into its parts; an op without one is
refused (PlanError "plan.no_kernel") with the reasons of every row of the table.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lanewise.errors import PlanError
from lanewise.ir.graph import ROOTS, Graph, Node, Ref, Type
from lanewise.ir.opdef import opdef
from lanewise.kernels.bodies import body_of
from lanewise.kernels.layout import packed_bytes, value_bytes
from lanewise.kernels.table import Selection, Stage, select
from lanewise.plan.plan import Array, Launch, Use


@dataclass
class Lowered:
    """Launches before they are scheduled and placed."""

    graph: Graph
    arrays: list[Array] = field(default_factory=list[Array])
    launches: list[Launch] = field(default_factory=list[Launch])
    selections: list[tuple[int, Selection]] = field(default_factory=list[tuple[int, Selection]])


@dataclass(frozen=True, slots=True)
class Home:
    """Where a value's bytes are: a window of an array."""

    array: int
    begin: int
    nbytes: int


class _Lowering:
    def __init__(self, graph: Graph, private: bool) -> None:
        self.out = Lowered(graph)
        self.graph = graph
        self.private = private
        self.homes: dict[Ref, Home] = {}
        self.kept = {_whole(graph, ref) for _, ref in graph.outputs}

    def array(self, name: str, kind: str, nbytes: int, type: Type) -> Home:
        self.out.arrays.append(Array(name, kind, nbytes, type))
        return Home(len(self.out.arrays) - 1, 0, nbytes)

    def root(self, index: int, node: Node) -> None:
        if node.op == "scalar":
            return
        type = node.types[0]
        kind = "constant" if node.op == "weight" else node.op
        packed = node.op == "weight" and len(type.shape) > 1
        nbytes = packed_bytes(type) if packed else value_bytes(type)
        self.homes[(index, 0)] = self.array(node.name, kind, nbytes, type)

    def view(self, index: int, node: Node) -> bool:
        """Values that are other names of bytes that exist."""
        home = self.homes.get(node.operands[0]) if node.operands else None
        if node.op == "reshape" and home is not None:
            self.homes[(index, 0)] = home
            return True
        if node.op == "layer" and home is not None:
            size = value_bytes(node.types[0])
            self.homes[(index, 0)] = Home(
                home.array, home.begin + int(node.attr("index")) * size, size
            )
            return True
        return False

    def effective_mode(self, index: int, stage: Stage) -> str:
        """Private work is private only where nobody else owns what it writes."""
        kept = any(isinstance(k, int) and (index, k) in self.kept
                   for k in stage.writes)  # fmt: skip
        return "split" if stage.mode == "private" and (kept or not self.private) else stage.mode

    def results(
        self, index: int, ops: tuple[Ref, ...], body: Graph, selection: Selection
    ) -> list[Home]:
        """Arrays for a node's results; a next version lives where its state does."""
        mode_of = {
            k: self.effective_mode(index, s)
            for s in selection.stages for k in s.writes if isinstance(k, int)
        }  # fmt: skip
        homes: list[Home] = []
        for k, (_, inner) in enumerate(body.outputs):
            state = _written_state(body, inner)
            if state is not None:
                home = self.homes[ops[state]]
            else:
                type = self.graph.type((index, k))
                kind = "private" if mode_of[k] == "private" else "arena"
                home = self.array(f"%{index}.{k}", kind, value_bytes(type), type)
            self.homes[(index, k)] = home
            homes.append(home)
        return homes

    def node(self, index: int, node: Node) -> None:
        ops, body = body_of(self.graph, index)
        selection = select(body)
        if not isinstance(selection, Selection):
            raise PlanError(
                "plan.no_kernel", f"no kernel runs {node.op}: "
                + "; ".join(f"{k}: {v}" for k, v in selection.items()),
                place=node.site, remedy="see `lanewise.kernels.table` for what runs here",
            )
        self.out.selections.append((index, selection))
        results = self.results(index, ops, body, selection)
        temps = {
            t.name: self.array(f"%{index}.{t.name}", "arena", t.nbytes, Type("u8", (t.nbytes,)))
            for t in selection.temps
        }
        for number, stage in enumerate(selection.stages):
            self.launch(index, number, stage, ops, results, temps, body, selection)

    def launch(
        self, index: int, number: int, stage: Stage, ops: tuple[Ref, ...], results: list[Home],
        temps: dict[str, Home], body: Graph, selection: Selection,
    ) -> None:
        uses: list[Use] = []
        slots: list[tuple[str, int]] = []

        def use(name: str, home: Home, write: bool, part: str) -> None:
            slots.append((name, len(uses)))
            uses.append(Use(home.array, home.begin, home.nbytes, write, part))

        mode = self.effective_mode(index, stage)
        for r in stage.reads:
            if isinstance(r, str):
                use(f"tmp.{r}", temps[r], False, "")
            else:
                home = self.homes[ops[_operand_index(body, r)]]
                use(f"in{r}", home, False, stage.part if r in stage.aligned else "")
        if stage.kernel == "pick":
            for k in selection.stages[0].writes:
                if isinstance(k, int):
                    use(f"out{k}", results[k], False, "")
        for w in stage.writes:
            if isinstance(w, str):
                use(f"tmp.{w}", temps[w], True, stage.part)
            else:
                use(f"out{w}", results[w], True, stage.part)
        node = self.graph.nodes[index]
        rule = f"{node.attr('rule')}: " if node.op == "fused" else ""
        self.out.launches.append(
            Launch(stage.kernel, index, number, mode, tuple(uses), tuple(slots), stage.scratch,
                   stage.operations, rule + _names(body))
        )  # fmt: skip


def _names(body: Graph) -> str:
    """What a body computes, in a line; the members of a group in brackets."""
    inner = (n for n in body.nodes if n.op not in ROOTS and n.op != "reshape")
    return " ".join(f"({_names(n.body)})" if n.body is not None else n.op for n in inner)


def _whole(graph: Graph, ref: Ref) -> Ref:
    """The value whose bytes a reshape of it is."""
    while graph.node(ref).op == "reshape":
        ref = graph.node(ref).operands[0]
    return ref


def _operand_index(body: Graph, root: int) -> int:
    return int(body.nodes[root].name)


def _written_state(body: Graph, ref: Ref) -> int | None:
    """The operand whose next version a result is, if it is one."""
    node = body.node(ref)
    while node.op == "fused" and node.body is not None:
        inner = node.body.outputs[ref[1]][1]
        k = _written_state(node.body, inner)
        if k is None:
            return None
        operand = node.operands[k]
        return _operand_index(body, operand[0])
    if node.op in ROOTS or ref[1] != 0 or not opdef(node.op).writes:
        return None
    return _operand_index(body, node.operands[0][0])


def lower(graph: Graph, *, private: bool = True) -> Lowered:
    """Select a kernel for every node and list its launches in the order of the graph."""
    lowering = _Lowering(graph, private)
    live = {r[0] for n in graph.nodes for r in n.operands} | {r[0] for _, r in graph.outputs}
    for i, node in enumerate(graph.nodes):
        if node.op in ROOTS:
            if i in live:
                lowering.root(i, node)
        elif not lowering.view(i, node):
            lowering.node(i, node)
    _outputs(lowering)
    return lowering.out


def _outputs(lowering: _Lowering) -> None:
    """Make the arrays of the graph's outputs the caller's; states stay where they are."""
    arrays = lowering.out.arrays
    for name, ref in lowering.graph.outputs:
        home = lowering.homes[ref]
        array = arrays[home.array]
        if array.kind == "arena":
            arrays[home.array] = Array(name, "output", array.nbytes, array.type)
        elif array.kind == "state":
            continue
        elif array.kind != "output" or array.name != name:
            raise PlanError(
                "plan.output", f"output {name!r} is not a value of its own",
                remedy="an output that is an input, a view or another output needs `contiguous`",
            )


