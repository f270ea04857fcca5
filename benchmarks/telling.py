"""What all the measuring scripts share: options, a table or one JSON object, medians of ratios."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Sequence
from typing import Any


def parser(doc: str | None) -> argparse.ArgumentParser:
    """An argument parser with the script's docstring as its help, and --json."""
    p = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--json", action="store_true", help="one JSON object on the last line")
    return p


def counts(text: str) -> list[int]:
    """Positive whole numbers, "1,2,4"; what argparse calls for such an option."""
    found = [int(word) for word in text.split(",")]
    if min(found) < 1:
        raise ValueError(text)
    return found


def ratio(above: Iterable[float], below: Iterable[float]) -> float:
    """The median over rounds of above / below within a round."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table's lines: cells of a column equally wide, the first column to the left."""
    cells = [list(head), *(list(row) for row in rows)]
    widths = [max(3, *(len(row[c]) for row in cells)) for c in range(len(head))]

    def line(row: Sequence[str]) -> str:
        filled = [x.rjust(w) for x, w in zip(row, widths, strict=True)]
        filled[0] = row[0].ljust(widths[0])
        return "| " + " | ".join(filled) + " |"

    rule = ["-" * w if c == 0 else "-" * (w - 1) + ":" for c, w in enumerate(widths)]
    return [line(cells[0]), line(rule), *map(line, cells[1:])]


def tell(
    args: argparse.Namespace,
    record: dict[str, Any],
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    notes: Iterable[str] = (),
) -> None:
    """Print the table and the notes below it, or the record if --json asks for it."""
    if args.json:
        print(json.dumps(record))
        return
    print("\n".join([*table(head, rows), *notes]))
