"""Speculation on and off, on texts that copy and on others: tokens a second, and the same tokens.

    python benchmarks/speculation.py [MODEL] [-n 160] [--speculate auto] [--temp 0] [--rounds 5]
                                     [--json]

Every round answers every prompt with speculation off and on, by turns (the order turns round), in
one process; what the lane learns of costs stays with it, as in a conversation.  A ratio is on /
off within a round, its median over the rounds is a prompt's, and the median over prompts is a
kind's.  The script fails if one token differs.  Prompts are the conversations below; a seed makes
sampling (--temp) repeatable.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks import telling  # noqa: E402

PASSAGE = (
    "The harbour of Velden freezes in the second week of January. Fishing boats are then drawn "
    "over the ice to the eastern pier, where Marta Olin and her two sons repair nets until March. "
    "In the winter of 1911 the ice held for ninety-four days, and the lighthouse was lit at noon."
)
CODE = """def read_table(path, delimiter=",", comment="#"):
    rows = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line = line.strip()
            if not line or line.startswith(comment):
                continue
            cells = [cell.strip() for cell in line.split(delimiter)]
            rows.append((number, cells))
    return rows"""
RECORDS = """{"name": "Ana Ruiz", "city": "Granada", "joined": 2019, "active": true}
{"name": "Tom Becker", "city": "Bremen", "joined": 2021, "active": false}
{"name": "Lin Wei", "city": "Chengdu", "joined": 2020, "active": true}
{"name": "Sara Nilsen", "city": "Bergen", "joined": 2018, "active": true}"""
LETTER = (
    "Dear Mr Okafor, thank you for your order of twelve oak shelves. They left our workshop on "
    "Tuesday and will reach you within eight days. The invoice is enclosed; please pay it before "
    "the end of the month. Yours sincerely, Helga Brandt, Brandt Furniture."
)
COPYING = {
    "repeat": f"Repeat this text word for word:\n\n{PASSAGE}",
    "code": f"Write this function again without any change:\n\n{CODE}",
    "records": f"Copy these lines exactly as they are:\n\n{RECORDS}",
    "letter": f"Repeat this letter exactly, but sign it with the name Karl Brandt:\n\n{LETTER}",
    "quote": f"{PASSAGE}\n\nQuote the whole text above, and then say where the boats are drawn.",
    "rename": f"Write this function again with `cells` renamed to `fields`:\n\n{CODE}",
}
OTHERS = {
    "story": "Tell me a story about a fox who wants to learn to swim.",
    "why": "Why is the sky blue in the day and red in the evening?",
    "letter": "Write a short letter to a friend who has moved to another country.",
    "advice": "How can I learn to play the piano as an adult?",
    "history": "What happened in Europe in the nineteenth century?",
    "idea": "Describe a machine that nobody has built yet.",
}
KINDS = {"copying": COPYING, "others": OTHERS}


@dataclass
class Answer:
    """One answer: its tokens, its rate in tokens a second, and guesses made and right."""

    ids: list[int]
    rate: float
    drafted: int = 0
    accepted: int = 0


@dataclass
class Case:
    """A prompt's answers, off and on, one of each a round."""

    kind: str
    name: str
    off: list[Answer] = field(default_factory=list)
    on: list[Answer] = field(default_factory=list)

    def check(self) -> None:
        """SystemExit if the tokens are not the same in all of them."""
        for answer in (*self.off, *self.on):
            if answer.ids != self.off[0].ids:
                raise SystemExit(f"{self.kind}/{self.name}: speculation changed the tokens")

    def record(self) -> dict[str, Any]:
        drafted = sum(a.drafted for a in self.on)
        return {
            "kind": self.kind, "prompt": self.name, "tokens": len(self.off[0].ids),
            "off": round(statistics.median(a.rate for a in self.off), 2),
            "on": round(statistics.median(a.rate for a in self.on), 2),
            "ratio": round(telling.ratio(*([a.rate for a in x] for x in (self.on, self.off))), 3),
            "drafted": drafted, "accepted": sum(a.accepted for a in self.on),
        }  # fmt: skip


def kinds(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The median ratio of each kind."""
    found = dict.fromkeys(r["kind"] for r in rows)
    return {
        kind: round(statistics.median(r["ratio"] for r in rows if r["kind"] == kind), 3)
        for kind in found
    }


def answer(lane: Any, prompt: str, speculate: str | int, args: argparse.Namespace) -> Answer:
    generation = lane.chat(
        [{"role": "user", "content": prompt}], max_tokens=args.generate, temperature=args.temp,
        seed=1, speculate=speculate,
    )  # fmt: skip
    generation.read()
    t = generation.timings
    return Answer(generation.ids, t.rate, t.drafted, t.accepted)


def run(lane: Any, args: argparse.Namespace) -> list[dict[str, Any]]:
    """All prompts, `args.rounds` times, checked; a round before them warms up (it also compiles
    the form that checks)."""
    cases = [Case(kind, name) for kind, found in KINDS.items() for name in found]
    wanted = int(args.speculate) if args.speculate.isdecimal() else args.speculate
    answer(lane, COPYING["repeat"], 1, args)
    for turn in range(args.rounds + 1):
        for case in cases:
            prompt = KINDS[case.kind][case.name]
            for on in (False, True) if turn % 2 else (True, False):
                found = answer(lane, prompt, wanted if on else "off", args)
                if turn:
                    (case.on if on else case.off).append(found)
    for case in cases:
        case.check()
    return [case.record() for case in cases]


def main(words: Sequence[str] | None = None) -> None:
    import lanewise as lw

    p = telling.parser(__doc__)
    p.add_argument("model", nargs="?", default="smollm2")
    p.add_argument("-n", "--generate", type=int, default=160)
    p.add_argument("--speculate", default="auto", help="auto, or a number of tokens")
    p.add_argument("--temp", type=float, default=0.0)
    p.add_argument("--activations")
    p.add_argument("--threads", type=int)
    p.add_argument("--rounds", type=int, default=5)
    args = p.parse_args(words)
    with lw.compile(args.model, activations=args.activations, threads=args.threads) as lane:
        rows = run(lane, args)
    medians = kinds(rows)
    cells = [
        [f"{r['kind']}: {r['prompt']}", str(r["tokens"]), f"{r['off']:.1f}", f"{r['on']:.1f}",
         f"{r['ratio']:.2f}", f"{r['accepted']}/{r['drafted']}"]
        for r in rows
    ]  # fmt: skip
    head = ["prompt", "tokens", "off tok/s", "on tok/s", "on / off", "right/guessed"]
    notes = [f"{kind}: {ratio:.2f} (median)" for kind, ratio in medians.items()]
    record = {"model": Path(args.model).name, "rows": rows, "medians": medians}
    telling.tell(args, record, head, cells, [*notes, "all tokens the same"])


if __name__ == "__main__":
    main()
