"""Barriers: one stands before a launch that touches what another thread wrote, or writes what
another thread touches, since the last barrier; nowhere else.

Every thread runs the whole step.  Two uses of the same bytes need no barrier when the array is
private to each thread, or when both name the same part: a thread then meets only its own bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from lanewise.plan.plan import Array, Launch, Use


def conflict(a: Use, b: Use, arrays: Sequence[Array]) -> bool:
    """Must all threads have finished `a` before any begins `b`?"""
    if a.array != b.array or not (a.write or b.write):
        return False
    if arrays[a.array].kind == "private":
        return False
    if a.begin + a.nbytes <= b.begin or b.begin + b.nbytes <= a.begin:
        return False
    return not (a.part and a.part == b.part)


def barriers(launches: Sequence[Launch], arrays: Sequence[Array]) -> tuple[bool, ...]:
    """For every launch, whether a barrier stands after it (the end of the step is one anyway)."""
    after = [False] * len(launches)
    phase: dict[int, list[Use]] = {}
    for i, launch in enumerate(launches):
        if any(conflict(a, u, arrays) for u in launch.uses for a in phase.get(u.array, ())):
            after[i - 1] = True
            phase = {}
        for u in launch.uses:
            phase.setdefault(u.array, []).append(u)
    return tuple(after)
