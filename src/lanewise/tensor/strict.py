"""What `Runtime(strict=True)` looks at before a submission: ids, pages and draws in range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lanewise.errors import LanewiseError, RunError, collect
from lanewise.tensor.binding import view
from lanewise.tensor.handles import PortDesc

if TYPE_CHECKING:
    from lanewise.tensor.builder import Check


def check_data(
    checks: Sequence[Check], ports: Mapping[str, PortDesc], given: Mapping[str, Any]
) -> None:
    """Raise RunError ``run.data`` for every port that holds what a kernel would treat as
    absent."""
    errors: list[LanewiseError] = []
    for check in checks:
        array = view(ports[check.port], given[check.port])
        bad = np.argwhere(~((array >= 0) & (array < check.limit)))
        if len(bad):
            at = tuple(int(i) for i in bad[0])
            errors.append(RunError(
                "run.data", f"{check.port!r}{list(at)} is {array[at]}: {check.what} below "
                f"{check.limit} is wanted", remedy="correct it, or run without strict",
            ))  # fmt: skip
    collect(errors)
