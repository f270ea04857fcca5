"""What a step of M rows costs, in steps of one row: T(M) / T(1), for each recipe of activations.

    python benchmarks/rows.py MODEL ... [--rows 1,2,3,4,5,8,16] [--activations int8x2,int8]
                              [--one-form] [-d DEPTH] [--threads N] [--rounds 9] [--json]

Every count of rows has a form of exactly that capacity; --one-form runs them all in the form of
the largest, as speculation does.  A round takes each recipe and each count in turn, the least of
--samples steps; a ratio is to the one-row step of the same round, and the median of the rounds is
told.  Every row has its head and its token, as when a draft is checked.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks import forms, telling  # noqa: E402

Step = Callable[[], float]
Key = tuple[str, int]  # activations, rows


def rounds(steps: dict[Key, Step], count: int, samples: int) -> dict[Key, list[float]]:
    """The least seconds of each step in every round; one round before them warms up."""
    took: dict[Key, list[float]] = {key: [] for key in steps}
    for turn in range(count + 1):
        for key, step in steps.items():
            least = min(step() for _ in range(samples))
            if turn:
                took[key].append(least)
    return took


def record(model: str, took: dict[Key, list[float]]) -> dict[str, Any]:
    """Of each recipe and count: milliseconds (median), T(M) / T(1), and a row's share of it."""
    out: dict[str, Any] = {}
    for (activations, rows), seconds in took.items():
        ratio = telling.ratio(seconds, took[activations, 1])
        out.setdefault(activations, {})[rows] = {
            "ms": round(statistics.median(seconds) * 1e3, 4), "ratio": round(ratio, 3),
            "per_row": round(ratio / rows, 3),
        }  # fmt: skip
    return {"model": Path(model).name, "activations": out}


def measure(model: str, args: argparse.Namespace) -> dict[str, Any]:
    """All recipes and counts of one model, by turns in this process."""
    counts = [max(args.rows)] if args.one_form else args.rows
    with ExitStack() as stack:
        steps: dict[Key, Step] = {}
        for activations in args.activations.split(","):
            made = stack.enter_context(forms.opened(
                model, sorted({1, *counts}), args.depth, activations=activations,
                threads=args.threads,
            ))  # fmt: skip
            for rows in args.rows:
                name = forms.name_of(rows if rows == 1 or not args.one_form else counts[0])
                steps[activations, rows] = partial(_step, made, name, rows, args.depth)
        return record(model, rounds(steps, args.rounds, args.samples))


def _step(made: forms.Opened, name: str, rows: int, depth: int) -> float:
    made.prepare(name, rows, depth)
    return made.step(name, rows)


def options(words: Sequence[str] | None) -> argparse.Namespace:
    p = telling.parser(__doc__)
    p.add_argument("models", nargs="+")
    p.add_argument("--rows", type=telling.counts, default=[1, 2, 3, 4, 5, 8, 16])
    p.add_argument("--activations", default="int8x2,int8")
    p.add_argument("--one-form", action="store_true", help="all counts in the largest form")
    p.add_argument("-d", "--depth", type=int, default=64)
    p.add_argument("--threads", type=int)
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--samples", type=int, default=5)
    args = p.parse_args(words)
    args.rows = sorted({1, *args.rows})
    return args


def main(words: Sequence[str] | None = None) -> None:
    args = options(words)
    told = [measure(model, args) for model in args.models]
    counts = [m for m in args.rows if m > 1]
    rows = [
        [t["model"], name, f"{found[1]['ms']:.2f}", *(f"{found[m]['ratio']:.2f}" for m in counts)]
        for t in told for name, found in t["activations"].items()
    ]  # fmt: skip
    head = ["model", "activations", "T(1) ms", *(f"T({m})/T(1)" for m in counts)]
    telling.tell(args, {"rows": told}, head, rows)


if __name__ == "__main__":
    main()
