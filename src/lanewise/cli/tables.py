"""How numbers and rows look: the same words on a terminal and in a pipe.

Text that comes from a file (metadata, names) is printed with its control characters escaped, so
that a checkpoint cannot drive the terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import click


def printable(text: str, *, keep: str = "", limit: int = 0) -> str:
    """`text` with control characters as \\x1b escapes; cut to `limit` characters if > 0."""
    if limit and len(text) > limit:
        text = text[: limit - 1] + "…"
    return "".join(c if c.isprintable() or c in keep else _escape(c) for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def size(nbytes: float) -> str:
    """Bytes for people, in powers of ten: 92.4 MB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{int(nbytes)} B"


def seconds(value: float) -> str:
    """A duration for people: 3.12 s, 41 ms, 2 min 05 s."""
    if value < 0.0995:
        return f"{value * 1e3:.0f} ms"
    if value < 120:
        return f"{value:.2f} s"
    return f"{int(value) // 60} min {int(value) % 60:02d} s"


def table(
    headings: Sequence[str], rows: Sequence[Sequence[Any]], *, right: Sequence[int] = ()
) -> None:
    """Print rows under headings to stdout; columns in `right` are set to the right.

    On a terminal the table is drawn by rich; in a pipe it is plain columns, two spaces apart.
    """
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _rich(headings, cells, right)
        return
    widths = [max([len(h), *(len(row[i]) for row in cells)]) for i, h in enumerate(headings)]
    for row in [list(headings), *cells]:
        padded = [
            cell.rjust(w) if i in right else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        click.echo("  ".join(padded).rstrip())


def _rich(headings: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[int]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, heading in enumerate(headings):
        drawn.add_column(Text(heading), justify="right" if i in right else "left")
    for row in cells:
        drawn.add_row(*(Text(cell) for cell in row))
    Console(file=sys.stdout).print(drawn)


def fields(rows: Sequence[tuple[str, Any]]) -> None:
    """Print `name  value` lines to stdout, the names in one column."""
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        click.echo(f"{printable(name):<{width}}  {printable(str(value))}".rstrip())


def one_json(value: Any) -> None:
    """Print one JSON object on one line of stdout (text stays readable: no \\u escapes)."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=str)
    click.echo(text.encode("utf-8", "replace").decode("utf-8"))
