"""Places for step-local arrays, by lifetime.

On a CPU two arrays may share bytes only if every phase of one precedes every phase of the other:
within a phase threads run unordered.  An array private to each thread is ordered by the launches
themselves.  Largest first, each at the lowest offset that is free for all its life.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lanewise.kernels.layout import align
from lanewise.plan.plan import Array, Launch, Place

ALIGN: Final = 64


@dataclass(frozen=True, slots=True)
class Life:
    """An array's first and last moment, both included."""

    array: int
    begin: int
    end: int
    nbytes: int


def lives(
    launches: Sequence[Launch], arrays: Sequence[Array], moments: Sequence[int], kind: str
) -> list[Life]:
    """Lifetimes of the arrays of one kind; `moments[i]` is the time of launch i."""
    seen: dict[int, tuple[int, int]] = {}
    for i, launch in enumerate(launches):
        for u in launch.uses:
            if arrays[u.array].kind == kind:
                first, _ = seen.get(u.array, (moments[i], 0))
                seen[u.array] = (first, moments[i])
    return [Life(a, b, e, align(arrays[a].nbytes, ALIGN)) for a, (b, e) in seen.items()]


def place(items: Sequence[Life], share: bool) -> tuple[dict[int, int], int]:
    """(array -> offset, bytes in all)."""
    offsets: dict[int, int] = {}
    placed: list[tuple[int, int, Life]] = []
    total = 0
    for life in sorted(items, key=lambda x: (-x.nbytes, x.array)):
        offset = 0
        for begin, end, other in placed:  # ascending by begin
            apart = share and (other.end < life.begin or life.end < other.begin)
            if apart or end <= offset:
                continue
            if offset + life.nbytes <= begin:
                break
            offset = end
        offsets[life.array] = offset
        placed.append((offset, offset + life.nbytes, life))
        placed.sort(key=lambda p: p[0])
        total = max(total, offset + life.nbytes)
    return offsets, total


def lower_bound(items: Sequence[Life]) -> int:
    """The most bytes that are alive at one moment."""
    steps: dict[int, int] = {}
    for life in items:
        steps[life.begin] = steps.get(life.begin, 0) + life.nbytes
        steps[life.end + 1] = steps.get(life.end + 1, 0) - life.nbytes
    alive = most = 0
    for moment in sorted(steps):
        alive += steps[moment]
        most = max(most, alive)
    return most


def place_all(
    launches: Sequence[Launch], arrays: Sequence[Array], phases: Sequence[int], share: bool
) -> tuple[tuple[Place | None, ...], int, int, tuple[int, int]]:
    """(place of each step-local array, arena bytes, private bytes, (unshared, lower bound))."""
    shared = lives(launches, arrays, phases, "arena")
    own = lives(launches, arrays, range(len(launches)), "private")
    at, arena_bytes = place(shared, share)
    mine, private_bytes = place(own, share)
    places: list[Place | None] = []
    for i in range(len(arrays)):
        if i in at:
            places.append(Place("arena", at[i]))
        elif i in mine:
            places.append(Place("private", mine[i]))
        else:
            places.append(None)
    unshared = sum(x.nbytes for x in shared)
    return tuple(places), arena_bytes, private_bytes, (unshared, lower_bound(shared))
