"""lanewise inspect: what a checkpoint holds and what it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from lanewise.cli import common, options
from lanewise.cli.progress import Stages
from lanewise.cli.tables import fields, one_json, printable, size, table

if TYPE_CHECKING:
    from lanewise.lane.spec import ModelInfo, ModelSpec

DEFAULT_CONTEXT = 4096
_FEW = 8  # items of a long array that are shown


@click.command("inspect")
@options.model_argument
@click.option("-c", "--context", type=options.Whole(1, options.BIG), help="For the memory line.")
@click.option("--kv", type=options.KV, default="f16", show_default=True, help="Likewise.")
@click.option("--tensors", is_flag=True, help="List every tensor.")
@options.offline_option
@options.json_option
def command(
    model: str,
    context: int | None,
    kv: str,
    tensors: bool,
    offline: bool | None,
    as_json: bool,
) -> None:
    """Show the metadata, tensors and formats of MODEL, and the memory that it needs.

    Reads the file's header only: no weights, no compiler.
    """
    stages = Stages()
    try:
        info = common.inspect_model(model, offline, stages)
    finally:
        stages.close()
    positions = context or min(info.spec.context if info.spec else 0, DEFAULT_CONTEXT)
    if as_json:
        one_json(_record(info, positions, kv))
        return
    click.echo(printable(info.path))
    fields([(name, _shown(value)) for name, value in info.metadata.items()])
    click.echo()
    rows = [(name, count, size(nbytes)) for name, (count, nbytes) in info.totals.items()]
    rows.append(("in all", len(info.tensors), size(info.nbytes)))
    table(("format", "tensors", "size"), rows, right=(1, 2))
    if tensors:
        click.echo()
        table(
            ("tensor", "format", "shape", "size"),
            [(t.name, t.format, _shape(t.shape), size(t.nbytes)) for t in info.tensors],
            right=(3,),
        )
    click.echo()
    fields(_needs(info, positions, kv))


def _needs(info: ModelInfo, positions: int, kv: str) -> list[tuple[str, str]]:
    rows = [("parameters", f"{info.parameters:,}")]
    if info.spec is None:
        first, *more = info.problem.splitlines() or [""]
        return [*rows, ("runs here", f"no: {first}"), *(("", line) for line in more)]
    needed = size(info.memory(positions, kv))
    rows += [
        ("runs here", "yes"),
        ("context", f"{info.spec.context:,} positions"),
        ("memory", f"{needed} for {positions:,} positions with {kv} keys and values"),
    ]
    if info.unused:
        rows.append(("unused", ", ".join(info.unused[:_FEW]) + (", …" * (len(info.unused) > _FEW))))
    return rows


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(str(n) for n in shape)


def _shown(value: Any) -> str:
    """A metadata value in at most a line."""
    if isinstance(value, str):
        return printable(value, limit=72)
    if isinstance(value, float):
        return f"{value:.7g}"  # most are f32, whose shortest form this is
    try:
        count = len(value)
    except TypeError:
        return str(value)
    first = ", ".join(_shown(value[i]) for i in range(min(count, _FEW)))
    return printable(f"[{first}{', …' if count > _FEW else ''}] ({count:,})", limit=100)


def _record(info: ModelInfo, positions: int, kv: str) -> dict[str, Any]:
    return {
        "path": info.path,
        "architecture": info.architecture,
        "parameters": info.parameters,
        "bytes": info.nbytes,
        "formats": {n: {"tensors": c, "bytes": b} for n, (c, b) in info.totals.items()},
        "runs": info.spec is not None,
        "problem": info.problem,
        "context": positions,
        "kv": kv,
        "memory": info.memory(positions, kv),
        "spec": None if info.spec is None else _spec(info.spec),
        "unused": list(info.unused),
        "metadata": {name: _plain(value) for name, value in info.metadata.items()},
        "tensors": [asdict(t) for t in info.tensors],
    }


def _spec(spec: ModelSpec) -> dict[str, Any]:
    return {k: v for k, v in asdict(spec).items() if k != "formats"}


def _plain(value: Any) -> Any:
    """A metadata value as JSON: long arrays as their kind and length, no NaN."""
    if isinstance(value, (str, bool, int)) or value is None:
        return value
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    try:
        count = len(value)
    except TypeError:
        return str(value)
    if count > 64:
        return {"length": count, "first": [_plain(value[i]) for i in range(_FEW)]}
    return [_plain(value[i]) for i in range(count)]
