"""Figures that a program leaves open, chosen by measurement when it is first compiled.

Laws: no bit of a result depends on a figure, so a choice may differ from machine to machine and
from day to day; what was built in stays unless another is faster by `GAIN` both in the best and
in the median of several turns that alternate (a shared machine is noisy); all of it takes
`BUDGET_S` at most and is remembered beside the program, by machine and thread count.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Protocol

from lanewise.errors import UsageError
from lanewise.lane.runner import DECODE, PREFILL, Engine, Ports, Progress
from lanewise.lane.sampling import Sampling
from lanewise.runtime import cache

GAIN: Final = 0.97
BUDGET_S: Final = 1.2
_TURNS: Final = 5
_ROWS: Final = 32  # of a prompt: as many as take the tiles of a long one, and soon over
_KIND: Final = "cpu/tuning"


@dataclass(frozen=True, slots=True)
class Tuning:
    """What products may be told; 0 is the kernel's own choice.

    ahead: bytes of packed weights that a product of few rows prefetches ahead (negative: none);
    units: panels of 16 outputs, chunk: chains of 512 of K, that a pass over many rows holds.
    """

    ahead: int = 0
    units: int = 0
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate: the form that was timed, and the best of its turns in seconds."""

    form: str
    tuning: Tuning
    seconds: float


@dataclass(frozen=True, slots=True)
class Tuned:
    """The choice, and what was measured for it (nothing: built-in figures)."""

    tuning: Tuning = Tuning()
    trials: tuple[Trial, ...] = ()

    def lines(self) -> list[str]:
        """For people: the choice, then every trial."""
        if not self.trials:
            return ["tuning: the built-in figures, nothing was measured"]
        told = [f"tuning: {_shown(self.tuning)}; chosen by measurement:"]
        return told + [
            f"  {x.form:8} {_shown(x.tuning):42} {x.seconds * 1e3:9.3f} ms" for x in self.trials
        ]

    def record(self) -> dict[str, Any]:
        return asdict(self)


# What is tried of each form, the built-in figures first.
CANDIDATES: Final[Mapping[str, tuple[dict[str, int], ...]]] = {
    DECODE: ({"ahead": 0}, {"ahead": -1}, {"ahead": 1024}, {"ahead": 4096}),
    PREFILL: ({}, {"units": 2}, {"chunk": 1}),
}


class Tunable(Engine, Protocol):
    """A session, as far as a tuner needs it."""

    def tune(self, ahead: int, units: int, chunk: int) -> None: ...


def tune(
    session: Tunable, name: str, tell: Progress, clock: Callable[[], float] = time.perf_counter
) -> Tuned:
    """The figures kept under a name, else those that are fastest now; the session runs with them.

    Runs the session's forms on an empty cache: for a lane that has held nothing yet."""
    found = _load(name)
    if found is None:
        found = _measure(session, tell, clock)
        _save(name, found)
    _apply(session, found.tuning)
    return found


def name_of(identity: str, machine: str, threads: int) -> str:
    """The key of what is kept."""
    return cache.key("tuning", "2", identity, machine, str(threads))


def _measure(session: Tunable, tell: Progress, clock: Callable[[], float]) -> Tuned:
    tuning, trials = Tuning(), []
    end = clock() + BUDGET_S
    for done, (form, changes) in enumerate(CANDIDATES.items()):
        tell("tune", done, len(CANDIDATES), form)
        tried = [replace(tuning, **change) for change in changes]
        share = clock() + (end - clock()) / (len(CANDIDATES) - done)
        turns = _times(session, form, tried, share, clock)
        if turns:
            seconds = [min(each) for each in turns]
            trials += [Trial(form, t, s) for t, s in zip(tried, seconds, strict=True)]
            best = min(range(len(tried)), key=seconds.__getitem__)
            if all(of(turns[best]) < GAIN * of(turns[0]) for of in (min, _middle)):
                tuning = tried[best]
    tell("tune", len(CANDIDATES), len(CANDIDATES), _shown(tuning))
    return Tuned(tuning, tuple(trials))


def _times(
    session: Tunable, form: str, tried: Sequence[Tuning], end: float, clock: Callable[[], float]
) -> list[list[float]]:
    """The times of each; none where not even two turns fit, or there is no such form."""
    try:
        ports = Ports(session, form, True)
    except UsageError:
        return []
    rows = min(_ROWS, ports.capacity)
    ports.feed([0] * rows, 0)
    ports.out_rows[0] = rows - 1
    ports.choose(Sampling(temperature=0.0), (0.0,))
    times: list[list[float]] = [[] for _ in tried]
    session.run(form, {"rows": rows, "outs": 1})  # pages are met, clocks rise
    for turn in range(_TURNS):
        for i, tuning in enumerate(tried):
            _apply(session, tuning)
            began = clock()
            session.run(form, {"rows": rows, "outs": 1})
            times[i].append(clock() - began)
            if clock() > end and turn < 2:
                return []
        if clock() > end:
            break
    return times


def _middle(times: Sequence[float]) -> float:
    return sorted(times)[len(times) // 2]


def _apply(session: Tunable, tuning: Tuning) -> None:
    session.tune(tuning.ahead, tuning.units, tuning.chunk)


def _shown(tuning: Tuning) -> str:
    ahead = {0: "as built in", -1: "none"}.get(tuning.ahead, f"{tuning.ahead} bytes ahead")
    parts = [f"prefetch {ahead}"]
    parts += [f"{k} {v}" for k, v in (("units", tuning.units), ("chunk", tuning.chunk)) if v]
    return ", ".join(parts)


def _load(name: str) -> Tuned | None:
    raw = cache.load(cache.path_of(_KIND, name, ".json"), name)
    if raw is None:
        return None
    try:
        found = json.loads(raw)
        trials = [Trial(t["form"], Tuning(**t["tuning"]), t["seconds"]) for t in found["trials"]]
        return Tuned(Tuning(**found["tuning"]), tuple(trials))
    except (ValueError, TypeError, KeyError):
        return None


def _save(name: str, tuned: Tuned) -> None:
    cache.store(cache.path_of(_KIND, name, ".json"), name, json.dumps(tuned.record()).encode())
