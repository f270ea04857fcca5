"""Graphs as text, and back: `parse_graph(print_graph(g)) == g`.

    graph step
    %0: f32[4,64] = input "x" (live="rows")
    %1: f32[64] = weight "gain"
    %2: int8x2[4,64] = fused %0 %1 (rule="norm_quantize") {
      graph body
      ...
      output "0" %3
    }
    output "y" %2

One statement a line; a result may have any %name, is defined once and used after.  Attributes
that have their default are not printed; the types of an op's results may be left out (they are
then inferred); `#` begins a comment.  Text is data from anywhere: a refusal has code
"graph.syntax" (or the op's own code), names the line, and all of them come together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from lanewise.errors import GraphError, collect
from lanewise.ir.graph import ROOTS, Graph, Node, Ref, Type, freeze_attrs
from lanewise.ir.opdef import OpDef, apply, complete_attrs, opdef, ops

MAX_DEPTH = 32  # fused bodies within fused bodies
MAX_ERRORS = 20

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_TOKEN = re.compile(
    r'[ \t]*(?:(?P<value>%[A-Za-z0-9_.$]+)|(?P<word>[A-Za-z_][A-Za-z0-9_]*)'
    r'|(?P<number>[-+]?(?:inf|nan|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?))'
    r'|(?P<string>"(?:[^"\\]|\\.)*")|(?P<mark>[][(){}:=,])|(?P<end>#.*|\Z)|(?P<bad>.))',
    re.DOTALL | re.ASCII,
)


def print_graph(graph: Graph) -> str:
    """The graph's text, one statement a line, ends with a newline."""
    lines: list[str] = []
    _print(graph, "", lines)
    lines.append("")
    return "\n".join(lines)


def value_names(graph: Graph) -> dict[Ref, str]:
    """How the text names each value: %0, %1, ... over all results in order."""
    refs = ((i, k) for i, node in enumerate(graph.nodes) for k in range(len(node.types)))
    return {ref: f"%{n}" for n, ref in enumerate(refs)}


def _print(graph: Graph, indent: str, lines: list[str]) -> None:
    names: dict[Ref, str] = {}
    lines.append(f"{indent}graph {_word(graph.name)}")
    known = ops()
    for i, node in enumerate(graph.nodes):
        results: list[str] = []
        for k, type in enumerate(node.types):
            name = names[(i, k)] = f"%{len(names)}"
            results.append(f"{name}: {type}")
        parts = [indent + ", ".join(results), "=", node.op]
        if node.op in ROOTS:
            parts.append(json.dumps(node.name))
        parts.extend([names[ref] for ref in node.operands])
        attrs = _print_attrs(node, known.get(node.op))
        if attrs:
            parts.append(attrs)
        if node.body is None:
            lines.append(" ".join(parts))
        else:
            lines.append(" ".join([*parts, "{"]))
            _print(node.body, indent + "  ", lines)
            lines.append(f"{indent}}}")
    for name, ref in graph.outputs:
        lines.append(f"{indent}output {json.dumps(name)} {names[ref]}")


def _word(name: str) -> str:
    return name if _WORD.match(name) else json.dumps(name)


def _print_attrs(node: Node, op: OpDef | None) -> str:
    defaults: Mapping[str, Any] = op.attrs if op else {}
    shown = [
        f"{key}={_print_value(value)}"
        for key, value in node.attrs
        if not (key in defaults and _same(defaults[key], value))
    ]
    return f"({', '.join(shown)})" if shown else ""


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and repr(a) == repr(b)  # 1 is not 1.0, 0.0 is not -0.0


def _print_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, tuple):
        return f"[{','.join(map(repr, cast(tuple[Any, ...], value)))}]"
    return repr(value)


def parse_graph(text: str, *, source: str = "text") -> Graph:
    """The graph of a text.

    Raises GraphError "graph.syntax" and the codes of opdef.apply, place "source:line"; several as
    `Refused`.  What is parsed is well formed, not yet legal: see `verify`.
    """
    errors: list[GraphError] = []
    parser = _Parser(text, source, errors)
    graph = parser.graph(0)
    collect(errors[:MAX_ERRORS])
    return graph


class _Statement:
    """The tokens of one line, read from left to right."""

    def __init__(self, text: str, place: str) -> None:
        self.place = place
        self.tokens: list[tuple[str, str]] = []
        for found in _TOKEN.finditer(text):
            kind = found.lastgroup or "end"
            if kind == "end":
                break
            self.tokens.append((kind, found[kind]))
            if kind == "bad":
                raise self.error(f"character {found[kind]!r} has no meaning here")
        self.tokens.append(("end", ""))
        self.at = 0

    def error(self, reason: str, code: str = "graph.syntax") -> GraphError:
        return GraphError(code, reason, place=self.place)

    @property
    def kind(self) -> str:
        return self.tokens[self.at][0]

    def take(self, kind: str, what: str) -> str:
        got, text = self.tokens[self.at]
        if got != kind:
            raise self.error(f"expected {what}, got {text or 'the end of the line'!r}")
        self.at += 1
        return text

    def accept(self, mark: str) -> bool:
        if self.tokens[self.at] == ("mark", mark):
            self.at += 1
            return True
        return False

    def expect(self, mark: str) -> None:
        if not self.accept(mark):
            got = self.tokens[self.at][1]
            raise self.error(f"expected {mark!r}, got {got or 'the end of the line'!r}")

    def string(self, what: str) -> str:
        text = self.take("string", what)
        try:
            return json.loads(text)
        except ValueError:
            raise self.error(f"{text} is no string: JSON escapes only") from None

    def integer(self, what: str) -> int:
        text = self.take("number", what)
        if not text.isdigit() or len(text) > 18:
            raise self.error(f"expected {what}, got {text}")
        return int(text)

    def type(self) -> Type:
        dtype = self.take("word", "a type")
        self.expect("[")
        shape = [self.integer("a dimension")]
        while self.accept(","):
            shape.append(self.integer("a dimension"))
        self.expect("]")
        if min(shape) == 0:
            raise self.error("every dimension must be > 0")
        return Type(dtype, tuple(shape))

    def value(self) -> Any:
        """An attribute's value."""
        kind, text = self.tokens[self.at]
        if kind == "string":
            return self.string("a value")
        if self.accept("["):
            return self._tuple()
        self.at += 1
        if kind == "word" and text in ("true", "false"):
            return text == "true"
        if kind == "word" and text in ("inf", "nan"):
            return float(text)
        if kind == "number":
            return self._number(text)
        raise self.error(f"expected a value, got {text or 'the end of the line'!r}")

    def _number(self, text: str) -> int | float:
        if text.lstrip("+-").isdigit():
            if len(text) > 19:
                raise self.error(f"{text[:19]}... is too large")
            return int(text)
        return float(text)

    def _tuple(self) -> tuple[Any, ...]:
        values: list[Any] = []
        while not self.accept("]"):
            if values:
                self.expect(",")
            values.append(self._number(self.take("number", "a number")))
        return tuple(values)

    def end(self) -> None:
        if self.kind != "end":
            raise self.error(f"{self.tokens[self.at][1]!r} after the end of the statement")


class _Scope:
    """Names of one graph while it is read."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.outputs: list[tuple[str, Ref]] = []
        self.refs: dict[str, Ref | None] = {}  # None: its statement was refused

    def poison(self, names: Sequence[str]) -> None:
        for name in names:
            self.refs.setdefault(name, None)


class _Parser:
    def __init__(self, text: str, source: str, errors: list[GraphError]) -> None:
        self.lines = text.replace("\r\n", "\n").split("\n")
        self.next = 0
        self.source = source
        self.errors = errors

    def statements(self) -> Iterator[_Statement]:
        """Every line that says something; a line that is no tokens is noted and left out."""
        while self.next < len(self.lines) and len(self.errors) < MAX_ERRORS:
            line = self.lines[self.next]
            self.next += 1
            try:
                statement = _Statement(line, f"{self.source}:{self.next}")
            except GraphError as error:
                self.errors.append(error)
                continue
            if statement.kind != "end":
                yield statement

    def graph(self, depth: int) -> Graph:
        """One graph: to the end of the text, or to the } of a body (depth > 0)."""
        name, scope, closed = None, _Scope(), depth == 0
        for n, s in enumerate(self.statements()):
            before = len(scope.refs)
            try:
                if n == 0:
                    name = self._head(s)
                elif depth and s.accept("}"):
                    s.end()
                    closed = True
                    break
                elif s.tokens[s.at] == ("word", "output"):
                    self._output(s, scope)
                else:
                    self._node(s, scope, depth)
            except GraphError as error:
                self.errors.append(error)
                if len(scope.refs) == before:
                    scope.poison([text for kind, text in s.tokens if kind == "value"])
        if not closed:
            self.errors.append(self._at_end("a body without its }"))
        elif name is None and not self.errors:
            self.errors.append(self._at_end("there is no graph"))
        return Graph(name or "", tuple(scope.nodes), tuple(scope.outputs))

    def _at_end(self, reason: str) -> GraphError:
        return GraphError("graph.syntax", reason, place=f"{self.source}:{self.next}")

    def _head(self, s: _Statement) -> str:
        if s.take("word", "`graph NAME`") != "graph":
            raise s.error("a graph begins with `graph NAME`")
        name = s.string("a name") if s.kind == "string" else s.take("word", "the graph's name")
        s.end()
        return name

    def _output(self, s: _Statement, scope: _Scope) -> None:
        s.take("word", "output")
        name = s.string("the output's name")
        ref = self._operand(s, scope)
        s.end()
        if any(name == n for n, _ in scope.outputs):
            raise s.error(f"output {name!r} is named twice", "graph.duplicate_name")
        if ref is not None:
            scope.outputs.append((name, ref))

    def _operand(self, s: _Statement, scope: _Scope) -> Ref | None:
        name = s.take("value", "a %value")
        if name not in scope.refs:
            raise s.error(f"{name} is not defined above", "graph.undefined")
        return scope.refs[name]

    def _node(self, s: _Statement, scope: _Scope, depth: int) -> None:
        names, types = self._results(s, scope)
        op = s.take("word", "an op")
        if op not in ops():
            self._skip_body(s, depth)
            raise s.error(f"there is no op {op!r}", "graph.unknown_op")
        name = s.string("the root's name") if op in ROOTS else ""
        operands: list[Ref | None] = []
        while s.kind == "value":
            operands.append(self._operand(s, scope))
        given = self._attrs(s) if s.accept("(") else {}
        before = len(self.errors)
        body = self._body(s, depth) if op == "fused" else None
        if body is None:
            s.end()
        known = tuple(r for r in operands if r is not None)
        if len(known) < len(operands) or len(self.errors) > before:
            scope.poison(names)
            return
        node = self._checked(s, op, known, given, types, name, body, scope)
        if len(node.types) != len(names):
            raise s.error(f"{op} gives {len(node.types)} results, not {len(names)}")
        for k, n in enumerate(names):
            scope.refs[n] = (len(scope.nodes), k)
        scope.nodes.append(node)

    def _results(self, s: _Statement, scope: _Scope) -> tuple[list[str], list[Type | None]]:
        names: list[str] = []
        types: list[Type | None] = []
        while True:
            name = s.take("value", "a statement (%name = op ..., or output)")
            if name in scope.refs or name in names:
                scope.poison([name])
                raise s.error(f"{name} is defined twice", "graph.duplicate_name")
            names.append(name)
            types.append(s.type() if s.accept(":") else None)
            if not s.accept(","):
                break
        s.expect("=")
        return names, types

    def _attrs(self, s: _Statement) -> dict[str, Any]:
        attrs: dict[str, Any] = {}
        while not s.accept(")"):
            if attrs:
                s.expect(",")
            key = s.take("word", "an attribute")
            s.expect("=")
            if key in attrs:
                raise s.error(f"attribute {key} is given twice")
            attrs[key] = s.value()
        return attrs

    def _body(self, s: _Statement, depth: int) -> Graph:
        s.expect("{")
        s.end()
        if depth >= MAX_DEPTH:
            raise s.error(f"bodies nest deeper than {MAX_DEPTH}")
        return self.graph(depth + 1)

    def _skip_body(self, s: _Statement, depth: int) -> None:
        """An unknown op with a body: read the body, so that its lines are not taken for ours."""
        if s.tokens[-2:-1] == [("mark", "{")] and depth < MAX_DEPTH:
            self.graph(depth + 1)

    def _checked(
        self, s: _Statement, op: str, operands: tuple[Ref, ...], given: Mapping[str, Any],
        types: list[Type | None], name: str, body: Graph | None, scope: _Scope,
    ) -> Node:  # fmt: skip
        declared = tuple(t for t in types if t is not None)
        if op in ROOTS and len(declared) < len(types):
            raise s.error(f"root {name!r} needs its type: `%x: f32[4,8] = {op} ...`")
        try:
            if op in ROOTS or len(declared) == len(types):
                attrs = complete_attrs(opdef(op), given)
            elif body is not None:
                attrs = complete_attrs(opdef(op), given)
                declared = tuple(body.type(ref) for _, ref in body.outputs)
            else:
                shown = tuple(scope.nodes[i].types[k] for i, k in operands)
                attrs, declared = apply(op, shown, given)
        except GraphError as error:
            raise GraphError(
                error.code, error.message, place=s.place, remedy=error.remedy
            ) from None
        return Node(op, operands, freeze_attrs(attrs), declared, name, body, s.place)
