"""A lane without a model, put in the place of the real one to test the command line.

Run as a script it is the whole command with the fake inside:

    python -m tests.cli.fake run fake hi

The model's name chooses what happens:
  fake        answers "The capital of France is Paris." (one word a piece)
  echo        answers with the messages or the prompt that it was given, as JSON
  slow        writes "tick " until it is stopped, 20 a second
  stuck       writes a line and then nothing for a minute
  flood       writes long lines without end
  rude        writes escape sequences and an unpaired surrogate
  full        ends because the context is full
  early       ends after three tokens, whatever is asked (an end token)
  refuse, bug, disk, memory, interrupt    fail on opening, each in its way
"""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from lanewise.errors import ModelError, UsageError
from lanewise.fuse.rule import Trace
from lanewise.ir.builder import GraphBuilder
from lanewise.ir.graph import Type
from lanewise.lane.generate import Timings
from lanewise.lane.profile import Launched, Profile
from lanewise.lane.tune import Trial, Tuned, Tuning
from lanewise.plan.cost import Cost
from lanewise.plan.plan import Memory, Plan
from lanewise.plan.program import Constant
from lanewise.runtime.ruler import Limits

VOCAB = 50
ANSWER = ["The", " capital", " of", " France", " is", " Paris", "."]


CONSTANTS = (
    Constant("token_embd.weight", Type("f16", (50, 32)), "panels", 0),
    Constant("blk.0.attn_q.weight", Type("q8_0", (32, 32)), "panels", 0),
    Constant("blk.0.attn_norm.weight", Type("f32", (32,)), "raw", 0),
    Constant("output.weight", Type("f16", (50, 32)), "panels", 0),
    Constant("rope", Type("f32", (64, 8)), "raw", 0),
)


@dataclass
class FakeGeneration:
    pieces: Iterator[str]
    timings: Timings
    ids: list[int] = field(default_factory=list)
    finish_reason: str = ""
    end: str = "stop"

    def __iter__(self) -> Iterator[str]:
        for piece in self.pieces:
            self.ids.append(len(self.ids))
            self.timings.tokens = len(self.ids)
            self.timings.generate_s += 0.01 if len(self.ids) > 1 else 0
            yield piece
        self.finish_reason = self.end

    def read(self) -> str:
        return "".join(self)


class FakeTokenizer:
    """One token a byte, modulo the vocabulary."""

    def encode(self, text: str, special: bool = False) -> list[int]:
        return [b % VOCAB for b in text.encode()]

    def first(self, text: str, count: int) -> list[int] | None:
        ids = self.encode(text)
        return ids[:count] if len(ids) > count else None


class FakeLane:
    """The lane's interface as the command line uses it; `calls` is what was asked of it."""

    last: FakeLane | None = None

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        self.model, self.options = model, options
        self.tokenizer = FakeTokenizer()
        self.spec = SimpleNamespace(
            vocab=VOCAB, layers=2, heads=4, kv_heads=2, head_dim=8, tied=False
        )
        self.threads = options["threads"] or 2
        self.calls: list[tuple[Any, dict[str, Any]]] = []
        self.closed = False
        self.cache: list[int] = []
        plan = a_plan()
        self.forms = {
            name: SimpleNamespace(
                name=name, capacity=n, source=f"graph {name}", plan=plan, io={"tokens": "u32[1]"}
            )
            for name, n in (("decode", 1), ("prefill", 512))
        }
        self.program = SimpleNamespace(
            text="// the program", identity="abc123", constants=CONSTANTS
        )
        self.context = self.options["context"] or 4096
        built_in, other = Tuning(), Tuning(ahead=1024)
        self.tuned = Tuned(other, (Trial("decode", built_in, 0.02), Trial("decode", other, 0.01)))
        FakeLane.last = self

    def __enter__(self) -> FakeLane:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def chat(self, messages: list[dict[str, str]], **options: Any) -> FakeGeneration:
        if self.options["context"] == 1:
            raise UsageError("usage.context", "the prompt is too long", remedy="give more with -c")
        return self._generate(messages, 10, options)

    def generate(self, prompt: str | list[int], **options: Any) -> FakeGeneration:
        return self._generate(prompt, len(prompt), options)

    def _generate(self, asked: Any, count: int, options: dict[str, Any]) -> FakeGeneration:
        self.calls.append((asked, options))
        most = options["max_tokens"] or 10**9
        pieces, end = self._pieces(asked)
        told = Timings(prompt_tokens=count, prompt_s=0.5, first_token_s=0.25)
        if isinstance(asked, list) and asked and isinstance(asked[0], int):
            told.reused = common_prefix(self.cache, asked[:-1])
            self.cache = list(asked)
            pieces = iter("x" * (3 if self.model == "early" else most))
        limited = (piece for piece, _ in zip(pieces, range(most), strict=False))
        return FakeGeneration(limited, told, end=end)

    def _pieces(self, asked: Any) -> tuple[Iterator[str], str]:
        if self.model == "echo":
            return iter([json.dumps(asked, ensure_ascii=False)]), "stop"
        if self.model == "slow":
            return ticks(), "stop"
        if self.model == "stuck":
            return stuck(), "stop"
        if self.model == "flood":
            return (f"{i} " * 1000 + "\n" for i in range(10**9)), "stop"
        if self.model == "rude":
            return iter(["a\x1b[2J", "\x9b31m", "\ud800", "b"]), "stop"
        if self.model == "full":
            return iter(["so", " far"]), "context"
        return iter(ANSWER), "stop"

    def profile(self, form: str, *, rows: int | None, depth: int) -> Profile:
        self.calls.append((form, {"rows": rows, "depth": depth}))
        launches = (
            Launched(0, "matmul", "head", 2e-3, 1e-3, Cost(1500, 100, "int8")),
            Launched(1, "rows", "norm", 1e-3, 0.0, Cost(0, 0, "")),
            Launched(2, "matmul", "head", 1e-3, 0.0, Cost(0, 200, "int8x2")),
            Launched(3, "attention", "heads", 4e-3, 1e-3, Cost(4000, 300, "f32")),
            Launched(4, "attention", "heads", 2e-3, 1e-3, Cost(4000, 300, "f32")),
            Launched(5, "matmul", "chain", 1e-3, 1e-3, Cost(0, 100, "int8x2")),
        )
        return Profile(form, rows or 1, depth, 20e-3, launches)

    def logits(self, ids: list[int]) -> np.ndarray:
        """Uniform but for the token itself, which is likelier as its successor."""
        self.calls.append((list(ids), {}))
        rows = np.zeros((len(ids), VOCAB), np.float32)
        rows[np.arange(len(ids)), ids] = 1.0
        return rows


def a_plan() -> Plan:
    """The plan of a graph without work."""
    b = GraphBuilder("small")
    b.output("y", b.root("input", "x", Type("f32", (4, 8))))
    trace = Trace(fired={"chain": 2}, held=("norm",))
    return Plan(b.finish(), (), (), (), (), (), Memory(256, 128, 192, 64, 0), trace)


def common_prefix(a: list[int], b: list[int]) -> int:
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count


def stuck() -> Iterator[str]:
    yield "a line\n"
    time.sleep(60)


def ticks() -> Iterator[str]:
    while True:
        time.sleep(0.05)
        yield "tick "


def open_lane(model: str, options: Any, progress: Any) -> FakeLane:
    """In the place of `lanewise.cli.common.open_lane`."""
    from lanewise.cli import common

    chosen = {**asdict(options), **common.in_force(options)}
    if model == "refuse":
        raise ModelError(
            "model.architecture",
            "we do not run 'x'",
            place="general.architecture",
            remedy="another",
        )
    if model == "bug":
        raise ZeroDivisionError("oops")
    if model == "disk":
        raise OSError(errno.ENOSPC, "No space left on device", "/some/where")
    if model == "memory":
        raise MemoryError
    if model == "interrupt":
        raise KeyboardInterrupt
    if progress is not None:
        progress("resolve", 0, 1, model)
        for done in (0, 50_000_000, 100_000_000):
            progress("download", done, 100_000_000, "")
        progress("resolve", 1, 1, model)
        for done in range(4):
            progress("compile", done, 3, "")
        progress("load", 0, 1, "")
    return FakeLane(model, chosen)


def install(monkeypatch: Any = None) -> None:
    """Put the fake in place: for a test, or for the rest of this process."""
    from lanewise.cli import common, limits

    if monkeypatch is None:
        common.open_lane = open_lane  # type: ignore[assignment]
        limits.machine = ruler
    else:
        monkeypatch.setattr(common, "open_lane", open_lane)
        monkeypatch.setattr(limits, "machine", ruler)


def ruler(threads: int) -> Limits:
    """A machine that reads 1 MB and multiplies 10^5 times a second, in 10^4 cycles of a core."""
    return Limits("avx2", threads, 1e6, 1e5, 4e5, 1e5, clock=1e4)


if __name__ == "__main__":
    from lanewise.cli import main

    install()
    main()
