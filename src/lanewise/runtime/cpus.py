"""How many CPUs this process may use: affinity and cgroup quota, whichever is less.

Laws: never more than the kernel would give us at once (a quota of 1.5 CPUs counts as 2);
what cannot be read does not limit.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
SELF_CGROUP = Path("/proc/self/cgroup")


def available_cpus() -> int:
    """CPUs that this process may use at once, at least 1."""
    quota = cpu_quota()
    cpus = affinity()
    return cpus if quota is None else max(1, min(cpus, math.ceil(quota)))


def affinity() -> int:
    """CPUs in this process's affinity mask."""
    try:
        return max(1, len(os.sched_getaffinity(0)))
    except (AttributeError, OSError):
        return max(1, os.cpu_count() or 1)


def cpu_quota() -> float | None:
    """The smallest CPU quota of the cgroups above this process, in CPUs; None: no limit."""
    limits = []
    for folder in cgroup_folders("cpu"):
        text = _read(folder / "cpu.max")  # v2: "quota period" or "max period"
        if text:
            quota, _, period = text.partition(" ")
        else:
            quota = _read(folder / "cpu.cfs_quota_us")
            period = _read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.strip().isdigit() and int(period) > 0 and int(quota) > 0:
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def cgroup_folders(controller: str) -> Iterator[Path]:
    """Folders of the cgroups that hold this process, innermost first, v2 and v1."""
    for line in _read(SELF_CGROUP).splitlines():
        number, _, rest = line.partition(":")
        names, _, inner = rest.partition(":")
        if number == "0" and not names:
            base = CGROUP_ROOT
        elif controller in names.split(","):
            base = CGROUP_ROOT / controller
        else:
            continue
        # Inside a container the path may be the host's and not be there: the base still is.
        parts = [p for p in inner.split("/") if p not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            folder = base.joinpath(*parts[:depth])
            if folder.is_dir():
                yield folder


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
