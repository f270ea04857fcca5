"""lanewise plan --time: where a step's time goes, launch by launch, and how much of it must be.

A launch's share of the limit is the least time that its bytes of memory (by the read rate) and its
multiply-adds (by their recipe's peak) take, over the time that it took: 1 is as good as it gets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from lanewise.cli.tables import size, table

if TYPE_CHECKING:
    from lanewise.lane.profile import Launched, Profile
    from lanewise.plan.cost import Cost
    from lanewise.runtime.ruler import Limits


def least_s(cost: Cost, limits: Limits) -> float:
    """The least seconds that a cost takes: memory and arithmetic may overlap."""
    peak = limits.peak(cost.recipe) if cost.recipe else 0.0
    return max(cost.nbytes / limits.read, cost.macs / peak if peak else 0.0)


def record(told: Profile, limits: Limits) -> dict[str, Any]:
    """For JSON: times in microseconds of thread 0, of_limit null where there is no limit."""
    launches = [_row(x, limits) for x in told.launches]
    return {
        "form": told.form, "rows": told.rows, "depth": told.depth,
        "run_us": _us(told.run_s), "limits": limits.record(),
        "launches": launches, "kernels": list(totals(launches)),
    }  # fmt: skip


def totals(launches: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Launches of a kernel that compute the same, together; most time first."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for x in launches:
        row = found.setdefault((x["kernel"], x["computes"]), {
            "kernel": x["kernel"], "computes": x["computes"], "count": 0, "time_us": 0.0,
            "wait_us": 0.0, "bytes": 0, "macs": 0, "least_us": 0.0,
        })  # fmt: skip
        row["count"] += 1
        for key in ("time_us", "wait_us", "bytes", "macs", "least_us"):
            row[key] += x[key]
    for row in sorted(found.values(), key=lambda r: -r["time_us"] - r["wait_us"]):
        took = row["time_us"] + row["wait_us"]
        rounded = {k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()}
        yield rounded | {"of_limit": _share(row["least_us"], took)}


def show(found: dict[str, Any]) -> None:
    """Launches, then kernels, then the sums."""
    click.echo(f"form {found['form']}: {found['rows']} rows after {found['depth']} positions")
    head = ("#", "kernel", "computes", "us", "wait us", "bytes", "MACs", "of limit")
    rows = [(str(x["launch"]), *_cells(x)) for x in found["launches"]]
    table(head, rows, right=(0, 3, 4, 5, 6, 7))
    click.echo("")
    head = ("launches", *head[1:])
    rows = [(str(x["count"]), *_cells(x)) for x in found["kernels"]]
    table(head, rows, right=(0, 3, 4, 5, 6, 7))
    work, wait, least = (
        sum(x[k] for x in found["launches"]) for k in ("time_us", "wait_us", "least_us")
    )
    click.echo(
        f"run {found['run_us']:.1f} us: launches {work:.1f}, waiting at barriers {wait:.1f} "
        f"(thread 0); {_share(least, found['run_us'])} of the limit"
    )
    rates = found["limits"]
    click.echo(f"limits: read {rates['read']} GB/s, f32 {rates['f32']}, int8 {rates['int8']}, "
               f"int16 {rates['int16']} x 10^9 multiply-adds a second")  # fmt: skip


def _row(x: Launched, limits: Limits) -> dict[str, Any]:
    least = least_s(x.cost, limits)
    return {
        "launch": x.launch, "kernel": x.kernel, "computes": x.computes,
        "time_us": _us(x.work_s), "wait_us": _us(x.wait_s), "bytes": x.cost.nbytes,
        "macs": x.cost.macs, "least_us": _us(least),
        "of_limit": _share(least, x.work_s + x.wait_s),
    }  # fmt: skip


def _cells(x: dict[str, Any]) -> tuple[str, ...]:
    share = "" if x["of_limit"] is None else f"{x['of_limit']:.2f}"
    return (
        x["kernel"], x["computes"], f"{x['time_us']:.1f}", f"{x['wait_us']:.1f}",
        size(x["bytes"]) if x["bytes"] else "", f"{x['macs'] / 1e6:.2f} M" if x["macs"] else "",
        share,
    )  # fmt: skip


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 2)


def _share(least: float, took: float) -> float | None:
    return round(least / took, 3) if least > 0 and took > 0 else None
