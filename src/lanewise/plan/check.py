"""An independent proof of a finished plan.  It knows nothing of how plans are made: it follows
bytes.  A fault is PlanError "plan.check", all of them collected.

1. Every array that is read was written before, every byte of it (or somebody else owns it).
2. No two arrays that are both still needed share a byte of the arena.
3. Between two barriers, no thread touches bytes that another thread writes.
"""

from __future__ import annotations

from collections.abc import Iterator

from lanewise.errors import LanewiseError, PlanError, collect
from lanewise.plan.plan import Launch, Plan, Use

# (region, first byte, last byte + 1)
Span = tuple[str, int, int]


def span(plan: Plan, use: Use) -> Span:
    """The bytes of a use; a buffer of its own is a region of its own."""
    place = plan.places[use.array]
    if place is None:
        return (f"buffer {use.array}", use.begin, use.begin + use.nbytes)
    return (place.region, place.offset + use.begin, place.offset + use.begin + use.nbytes)


def _fault(plan: Plan, launch: int, message: str) -> PlanError:
    return PlanError(
        "plan.check", message, place=f"launch {launch} ({plan.launches[launch].label})",
        remedy="this is a fault of the planner: please report the graph's text",
    )


def _overlap(a: Span, b: Span) -> bool:
    return a[0] == b[0] and a[1] < b[2] and b[1] < a[2]


def check_written(plan: Plan) -> Iterator[LanewiseError]:
    """Rules 1 and 2: which array wrote each byte last, followed through the launches."""
    owner: dict[str, list[tuple[int, int, int]]] = {"arena": [], "private": []}
    for i, launch in enumerate(plan.launches):
        for use in launch.uses:
            region, begin, end = span(plan, use)
            if use.write or region not in owner:
                continue
            have = sorted(
                (max(b, begin), min(e, end)) for b, e, a in owner[region]
                if a == use.array and b < end and begin < e
            )  # fmt: skip
            at = begin
            for b, e in have:
                at = max(at, e) if b <= at else at
            if at < end:
                name = plan.arrays[use.array].name
                yield _fault(plan, i, f"reads {name} at byte {at - begin}, which holds another "
                             "array or nothing")  # fmt: skip
        for use in launch.uses:
            region, begin, end = span(plan, use)
            if use.write and region in owner:
                owner[region] = _claim(owner[region], begin, end, use.array)


def _claim(
    spans: list[tuple[int, int, int]], begin: int, end: int, array: int
) -> list[tuple[int, int, int]]:
    kept: list[tuple[int, int, int]] = []
    for b, e, a in spans:
        if b < begin:
            kept.append((b, min(e, begin), a))
        if end < e:
            kept.append((max(b, end), e, a))
    return [*((b, e, a) for b, e, a in kept if b < e), (begin, end, array)]


def check_ordered(plan: Plan) -> Iterator[LanewiseError]:
    """Rule 3, over the bytes of each phase."""
    phase: list[tuple[Span, bool, str, int]] = []
    for i, launch in enumerate(plan.launches):
        mine = [(span(plan, u), u.write, u.part, i) for u in launch.uses]
        for here, write, part, _ in mine:
            for other, wrote, its, j in phase:
                if here[0] == "private" or not (write or wrote) or not _overlap(here, other):
                    continue
                if part and part == its and here == other:
                    continue
                yield _fault(plan, i, f"meets bytes of launch {j} with no barrier between")
        yield from _check_mode(plan, i, launch)
        phase = [] if plan.barriers[i] else [*phase, *mine]


def _check_mode(plan: Plan, index: int, launch: Launch) -> Iterator[LanewiseError]:
    for use in launch.uses:
        private = plan.arrays[use.array].kind == "private"
        if use.write and private != (launch.mode == "private"):
            yield _fault(plan, index, f"is {launch.mode} and writes {plan.arrays[use.array].kind}"
                         f" bytes ({plan.arrays[use.array].name})")  # fmt: skip


def check_room(plan: Plan) -> Iterator[LanewiseError]:
    """Every array lies within the bytes that are allocated."""
    limit = {"arena": plan.memory.allocated, "private": plan.memory.private}
    for i, launch in enumerate(plan.launches):
        for use in launch.uses:
            place = plan.places[use.array]
            if use.begin < 0 or use.begin + use.nbytes > plan.arrays[use.array].nbytes:
                yield _fault(plan, i, f"goes beyond {plan.arrays[use.array].name}")
            if place is not None and place.offset + plan.arrays[use.array].nbytes > (
                limit[place.region]
            ):
                yield _fault(plan, i, f"{plan.arrays[use.array].name} lies beyond the arena")


def check(plan: Plan) -> None:
    """Prove a plan, or raise what is wrong with it."""
    collect([*check_written(plan), *check_ordered(plan), *check_room(plan)])
