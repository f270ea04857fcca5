"""The bench's two tests: how fast a lane reads a prompt, and how fast it writes.

Laws: token ids are random and given as ids, so no tokenizer is timed; writing is greedy.  Every
repeat begins with another token, so that no prompt finds its own start in the cache; the tokens
that fill the cache to a depth are the same in every repeat, so they are computed once.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from lanewise.lane import Lane
    from lanewise.lane.generate import Timings

_SEED = 20_24


@dataclass(frozen=True, slots=True)
class Work:
    """What to measure, in tokens; 0 leaves a test out.  `depth` tokens are in the cache before."""

    prompt: int
    generate: int
    depth: int
    repeat: int

    @property
    def context(self) -> int:
        """Positions that the work takes."""
        return self.depth + max(self.prompt, 1) + max(self.generate, 1) + 1


@dataclass(slots=True)
class Result:
    """Tokens per second and seconds to the first token, one of each per repeat."""

    pp: list[float] = field(default_factory=list)
    tg: list[float] = field(default_factory=list)
    first_token_s: list[float] = field(default_factory=list)


def median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def measure(
    lane: Lane, work: Work, tell: Callable[[int, int], None] = lambda done, total: None
) -> Result:
    """Run every test once to warm up and `repeat` times for the record.  `tell(done, total)` is
    called between runs, so that it costs none of them anything."""
    vocab = lane.spec.vocab
    ids = np.random.default_rng(_SEED).integers(0, vocab, work.depth + work.prompt + 1).tolist()
    depth, rest = ids[: work.depth], ids[work.depth :]
    result = Result()
    if depth:
        _take(lane, depth, 1)
    for turn in range(work.repeat + 1):
        tell(turn, work.repeat + 1)
        fresh = [turn % vocab, *rest]
        if work.prompt:
            told = _take(lane, depth + fresh[: work.prompt], 1)
            if turn:
                result.pp.append(told.prompt_rate)
                result.first_token_s.append(told.first_token_s)
        if work.generate:
            tg, first = _write(lane, depth, turn, work.generate)
            if turn:
                result.tg.append(tg)
                if not work.prompt:
                    result.first_token_s.append(first)
    return result


def _write(lane: Lane, depth: list[int], turn: int, count: int) -> tuple[float, float]:
    """Tokens per second over `count` tokens after one more token of prompt, and seconds to the
    first of them.  Where an end token comes early, another start carries on."""
    steps, time, first, start = 0, 0.0, 0.0, turn
    for attempt in range(count):
        start = (start * 31 + 17 + attempt) % lane.spec.vocab
        told = _take(lane, [*depth, start], count - steps + 1)
        if not attempt:
            first = told.first_token_s
        if told.tokens > 1:
            steps += told.tokens - 1
            time += told.generate_s
        if steps >= count:
            break
    return steps / time if time > 0 else 0.0, first


def _take(lane: Lane, ids: list[int], count: int) -> Timings:
    generation = lane.generate(ids, max_tokens=count, temperature=0, speculate="off")
    generation.read()
    return generation.timings
