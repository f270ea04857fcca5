"""What `Runtime(strict=True)` looks at before a submission: ids, pages, lengths, counts, draws
and what a token is drawn from.

A kernel treats as absent what cannot be; here it is refused instead.  0xFFFFFFFF is absence on
purpose where a row may have no place (`absent`).  Rows that a `live` scalar skips do not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lanewise.errors import LanewiseError, RunError, collect
from lanewise.tensor.binding import view
from lanewise.tensor.buffers import Array
from lanewise.tensor.handles import PortDesc

ABSENT = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Check:
    """Device data of a port: every element below `limit`, or `whole`: their sum at most `limit`,
    or `other`: each at most the element of another port; none below 0, unless `signed`."""

    port: str
    limit: float
    what: str
    whole: bool = False
    absent: bool = False
    other: str = ""
    live: str = ""
    signed: bool = False


def check_data(
    checks: Sequence[Check], ports: Mapping[str, PortDesc], given: Mapping[str, Any]
) -> None:
    """Raise RunError ``run.data`` for every port that holds what a kernel would treat as
    absent."""
    errors: list[LanewiseError] = []
    for check in dict.fromkeys(checks):
        array = view(ports[check.port], given[check.port])
        array = array[: given[check.live]] if check.live else array
        if check.whole:
            total = int(array.sum(dtype=np.uint64))
            if total > check.limit:
                errors.append(_bad(
                    check, f"{check.port!r} sums to {total}: {check.what} in all are at most "
                    f"{check.limit}",
                ))  # fmt: skip
            continue
        limit: Any = check.limit
        if check.other:
            limit = view(ports[check.other], given[check.other]).astype(np.uint64) + 1
        errors += _each(check, array, limit)
    collect(errors)


def _each(check: Check, array: Array, limit: Any) -> list[LanewiseError]:
    good = (array < limit) & (check.signed | (array >= 0))
    bad = np.argwhere(~(good | (array == ABSENT) if check.absent else good))
    if not len(bad):
        return []
    at = tuple(int(i) for i in bad[0])
    bound = f"at most {check.other!r}" if check.other else f"below {check.limit}"
    if array.dtype.kind == "f" and not check.signed:
        bound = f"of 0 <= x < {check.limit}"
    more = f" ({len(bad)} such)" if len(bad) > 1 else ""
    return [_bad(check, f"{check.port!r}{list(at)} is {array[at]}: {check.what} {bound} is wanted"
                 f"{more}")]  # fmt: skip


def _bad(check: Check, message: str) -> RunError:
    free = "; 0xFFFFFFFF is a row without a place" if check.absent else ""
    return RunError("run.data", message,
                    remedy=f"correct it, or run without strict{free}")  # fmt: skip
