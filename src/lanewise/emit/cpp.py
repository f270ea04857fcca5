"""The text of a program: launches as functions, equal layers as one loop over tables of places.

Reading order: identity, the functions of the launches (each once, however many launches share
it), then each form: tables of places, the layer that repeats, the step that calls all in order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lanewise.emit.launches import launch_text
from lanewise.plan.plan import Launch, Plan
from lanewise.plan.program import Buffer, Constant, FormEntry, KernelObject, Program
from lanewise.plan.repeats import Run, repeats

REGIONS = {"arena": 0, "private": 1}


@dataclass
class _Tables:
    """The buffers of a program: constants and states by name, inputs and outputs by form."""

    buffers: list[Buffer] = field(default_factory=list[Buffer])
    index: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, buffer: Buffer) -> int:
        known = self.index.get(buffer.name)
        if known is None:
            known = self.index[buffer.name] = len(self.buffers)
            self.buffers.append(buffer)
        assert self.buffers[known] == buffer, f"two buffers named {buffer.name}"
        return known


def buffer_tables(plans: Mapping[str, Plan]) -> tuple[_Tables, dict[str, dict[int, int]]]:
    """The program's buffers, and for each form array -> buffer."""
    tables = _Tables()
    where: dict[str, dict[int, int]] = {name: {} for name in plans}
    for kinds in (("constant",), ("state",), ("input", "output")):
        for form, plan in plans.items():
            for i, a in enumerate(plan.arrays):
                if a.kind in kinds:
                    name = a.name if a.kind in ("constant", "state") else f"{form}/{a.name}"
                    where[form][i] = tables.add(Buffer(name, a.kind, a.nbytes, a.type))
    return tables, where


def scalar_table(plans: Mapping[str, Plan]) -> tuple[tuple[str, str], ...]:
    """(name, type) of every scalar of every form, in order of appearance."""
    found: dict[str, str] = {}
    for plan in plans.values():
        for _, node in plan.graph.roots("scalar"):
            found.setdefault(node.name, node.types[0].dtype)
    return tuple(found.items())


def codes(plan: Plan, launch: Launch, where: Mapping[int, int]) -> list[int]:
    """The place of each use, as `lw_places` reads it."""
    out: list[int] = []
    for use in launch.uses:
        place = plan.places[use.array]
        if place is None:
            out.append(2 << 60 | where[use.array] << 40 | use.begin)
        else:
            out.append(REGIONS[place.region] << 60 | (place.offset + use.begin))
    return out


@dataclass
class _Functions:
    """Functions by their text: launches that differ in places alone share one."""

    names: dict[str, str] = field(default_factory=dict[str, str])

    def name(self, text: str) -> str:
        return self.names.setdefault(text, f"launch_{len(self.names)}")

    def texts(self) -> list[str]:
        return [text.replace("@", name) for text, name in self.names.items()]


def _calls(
    names: Sequence[str], launches: Sequence[Launch], barriers: Sequence[bool], timed: bool
) -> list[str]:
    lines: list[str] = ["  uint64_t now = lw_now();"] if timed else []
    at = 0
    for i, (name, launch, barrier) in enumerate(zip(names, launches, barriers, strict=True)):
        n = len(launch.uses)
        lines.append(f"  lw_places(c, t, k + {at}, {n}, p);")
        lines.append(f"  {name}(c, t, T, p);  // {launch.label}")
        if timed:
            lines.append(f"  now = lw_tick(t, times + {2 * i}, now);")
        if barrier:
            lines.append("  lw_barrier(c->pool, t, T);")
            if timed:
                lines.append(f"  now = lw_tick(t, times + {2 * i + 1}, now);")
        at += n
    return lines


def _run_text(
    form: str, number: int, run: Run, plan: Plan, names: Sequence[str],
    table: Sequence[list[int]], timed: bool,
) -> tuple[list[str], list[str]]:
    """(definitions, statements of the step) of a run of launches."""
    first = slice(run.begin, run.begin + run.length)
    launches, barriers = plan.launches[first], plan.barriers[first]
    rows = [
        [c for codes in table[run.begin + r * run.length : run.begin + (r + 1) * run.length]
         for c in codes]
        for r in range(run.count)
    ]  # fmt: skip
    width, most = len(rows[0]), max((len(x.uses) for x in launches), default=1)
    places = f"{form}_places_{number}"
    part = f"{form}_{'layer' if run.count > 1 else 'part'}_{number}"
    defs = [f"static const uint64_t {places}[{run.count}][{max(width, 1)}] = {{"]
    defs += ["  {" + ", ".join(f"0x{c:x}" for c in row) + "}," for row in rows]
    more = ", uint64_t* times" if timed else ""
    defs += ["};",
             f"static void {part}(LwContext* c, int32_t t, int32_t T, const uint64_t* k{more}) {{",
             f"  uint8_t* p[{max(most, 1)}];", *_calls(names[first], launches, barriers, timed),
             "}"]  # fmt: skip
    i = "0" if run.count == 1 else "i"
    cells = f", {times_of(form)} + {2 * run.begin} + {i} * {2 * run.length}" if timed else ""
    call = f"{part}(c, t, T, {places}[{i}]{cells});"
    if run.count == 1:
        return defs, [f"  {call}"]
    return defs, [f"  for (int i = 0; i < {run.count}; ++i) {call}"]


def form_text(
    form: str, plan: Plan, where: Mapping[int, int], functions: _Functions,
    scalars: Mapping[str, int], timed: bool = False,
) -> list[str]:
    """Everything of one form but the functions of its launches."""
    texts: dict[str, str] = {}
    names: list[str] = []
    for launch in plan.launches:
        text = launch_text(plan, launch, scalars)
        names.append(texts.setdefault(text, functions.name(text)))
    table = [codes(plan, x, where) for x in plan.launches]
    runs = repeats(list(zip(names, plan.barriers, strict=True)))
    merged = _merge(runs)
    lines, steps = list[str](), list[str]()
    if timed:
        cells = f"uint64_t {times_of(form)}[{2 * len(plan.launches)}]"
        lines.append(f'extern "C" {{ __attribute__((visibility("default"))) {cells}; }}')
    for number, run in enumerate(merged):
        defs, calls = _run_text(form, number, run, plan, names, table, timed)
        lines += [*defs, ""]
        steps += calls
    lines += [
        f'extern "C" __attribute__((visibility("default"))) void lw_form_{form}(LwContext* c, '
        "int32_t t, int32_t T) {",
        *steps, "}",
    ]  # fmt: skip
    return lines


def times_of(form: str) -> str:
    """The symbol of a timed form's table: ticks of work and of waiting, for every launch."""
    return f"lw_times_{form}"


def _merge(runs: Sequence[Run]) -> list[Run]:
    """Neighbouring single launches are one part."""
    out: list[Run] = []
    for run in runs:
        if run.count == 1 and out and out[-1].count == 1:
            last = out.pop()
            out.append(Run(last.begin, last.length + run.length, 1))
        else:
            out.append(run)
    return out


def kernel_objects(plans: Mapping[str, Plan]) -> tuple[KernelObject, ...]:
    found: dict[tuple[str, tuple[str, ...]], KernelObject] = {}
    for plan in plans.values():
        for _, selection in plan.selections:
            for obj in selection.objects:
                found.setdefault((obj.source, obj.defines), obj)
    return tuple(found.values())


def _prototypes(objects: Sequence[KernelObject]) -> list[str]:
    """Declarations of gathers (matmul.h declares by format, each header its own)."""
    lines: list[str] = []
    for obj in objects:
        for define in obj.defines:
            if define.startswith("LW_FORMAT="):
                fmt = define.removeprefix("LW_FORMAT=")
                lines.append(f"LW_DECLARE_PACK({fmt})")
            if define.startswith("LW_ACT="):
                lines.append(f"LW_DECLARE_PRODUCT({fmt}, {define.removeprefix('LW_ACT=')})")
    return list(dict.fromkeys(lines))


def emit(
    plans: Mapping[str, Plan], target: str, facts: Mapping[str, str], *, timed: bool = False
) -> Program:
    """The program of a set of forms.  `facts` are said in its header and part of its identity.
    `timed`: one that counts the time of every launch (`times_of`)."""
    tables, where = buffer_tables(plans)
    scalars = scalar_table(plans)
    numbers = {name: i for i, (name, _) in enumerate(scalars)}
    functions = _Functions()
    forms: list[str] = []
    for name, plan in plans.items():
        forms += [f"// ---- form {name} ----", *form_text(name, plan, where[name], functions,
                                                          numbers, timed), ""]  # fmt: skip
    objects = kernel_objects(plans)
    calls = any(x.kernel == "call" for p in plans.values() for x in p.launches)
    includes = ['#include "program.h"', *(['#include "calls.h"'] if calls else []),
                *(['#include "clock.h"'] if timed else [])]  # fmt: skip
    body = "\n".join([*includes, "", *_prototypes(objects), "",
                      *(f"{x}\n" for x in functions.texts()), *forms])  # fmt: skip
    constants = tuple(_constant(b) for b in tables.buffers if b.kind == "constant")
    header = [f"// {k}: {v}" for k, v in facts.items()]
    identity = hashlib.sha256("\n".join([*header, body]).encode()).hexdigest()
    text = "\n".join([f"// Lanewise program {identity}", *header, "", body])
    memory = [p.memory for p in plans.values()]
    return Program(
        text, identity, target, objects, tuple(tables.buffers), constants,
        tuple(_entry(n, p, where[n]) for n, p in plans.items()), scalars,
        max(m.allocated for m in memory), max(m.private for m in memory),
        max(m.scratch for m in memory),
    )  # fmt: skip


def _constant(buffer: Buffer) -> Constant:
    packed = len(buffer.type.shape) > 1 and buffer.name != "rope"
    return Constant(buffer.name, buffer.type, "panels" if packed else "raw", buffer.nbytes)


def _entry(name: str, plan: Plan, where: Mapping[int, int]) -> FormEntry:
    inputs = tuple((a.name, where[i]) for i, a in enumerate(plan.arrays) if a.kind == "input")
    outputs = tuple((a.name, where[i]) for i, a in enumerate(plan.arrays) if a.kind == "output")
    capacity = max((a.type.shape[0] for a in plan.arrays if a.kind == "input"), default=1)
    return FormEntry(name, f"lw_form_{name}", capacity, inputs, outputs)
