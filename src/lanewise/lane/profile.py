"""The time of every launch of a form: a variant of its program counts ticks around each.

Laws: the normal program is not touched, the variant differs by its clock reads alone; figures
are thread 0's, of the fastest of several runs, so that they add up; caches hold numbers that were
written (untouched pages would read faster than any memory), so a lane forgets what it held.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lanewise.emit.cpp import times_of
from lanewise.errors import UsageError
from lanewise.lane.runner import Engine, Ports
from lanewise.lane.sampling import Sampling
from lanewise.plan.cost import Cost, launch_cost
from lanewise.plan.report import table

if TYPE_CHECKING:
    from lanewise.plan.plan import Plan
    from lanewise.runtime.library import Library

_CALIBRATE_S = 0.02


class Timed(Engine, Protocol):
    """A session of a timed program; what it needs beyond an engine."""

    def state(self, name: str) -> NDArray[Any]: ...


@dataclass(frozen=True, slots=True)
class Launched:
    """One launch: seconds of thread 0 at work and waiting after it, and what it had to do."""

    launch: int
    kernel: str
    computes: str
    work_s: float
    wait_s: float
    cost: Cost


@dataclass(frozen=True, slots=True)
class Profile:
    """A form's launches, in order; `run_s` is a whole run, the caller's part included."""

    form: str
    rows: int
    depth: int
    run_s: float
    launches: tuple[Launched, ...]


def profile(
    session: Timed, library: Library, plan: Plan, form: str, *, rows: int, depth: int,
    context: int, repeat: int = 9,
) -> Profile:
    """Run a timed form `repeat` times (after two to warm up) on `rows` rows after `depth`
    positions.  UsageError "usage.option" where that does not fit."""
    ports = Ports(session, form, True)
    if not 1 <= rows <= ports.capacity or rows + depth > context:
        raise UsageError(
            "usage.option", f"{rows} rows after {depth} positions", place=f"form {form}",
            remedy=f"up to {ports.capacity} rows, {context} positions together",
        )  # fmt: skip
    for name in ("k", "v"):
        session.state(name)[:, : -(-(rows + depth) // 64) * 64] = 0.01
    tokens = np.random.default_rng(1).integers(0, ports.logits.shape[-1], rows)
    ports.feed(tokens.tolist(), depth)
    outs = min(len(ports.out_rows), rows)
    ports.out_rows[:outs] = np.arange(rows - outs, rows)
    ports.choose(Sampling(temperature=0.0), [0.0] * outs)
    count = 2 * len(plan.launches)
    address = library.address(times_of(form))
    cells = np.ctypeslib.as_array((ctypes.c_uint64 * count).from_address(address))
    best, ticks = np.inf, np.zeros(count)
    for turn in range(repeat + 2):
        cells[:] = 0
        began = time.perf_counter()
        session.run(form, {"rows": rows, "outs": outs})
        took = time.perf_counter() - began
        if turn >= 2 and took < best:
            best, ticks = took, cells.astype(np.float64)
    seconds = ticks.reshape(-1, 2) * _tick_s(library)
    told = table(plan)
    launches = tuple(
        Launched(i, str(told[i]["kernel"]), launch.label, float(seconds[i, 0]),
                 float(seconds[i, 1]), launch_cost(plan, launch, rows, depth))
        for i, launch in enumerate(plan.launches)
    )  # fmt: skip
    return Profile(form, rows, depth, float(best), launches)


def _tick_s(library: Library) -> float:
    """Seconds of a tick."""
    now = library.function("lw_ticks", "l")
    began, first = time.perf_counter(), now()
    time.sleep(_CALIBRATE_S)
    return (time.perf_counter() - began) / max(1, now() - first)
