"""lanewise plan --time: where a step's time goes, launch by launch, and how much of it must be.

A launch's share of the limit is the least time that its bytes of memory (by the read rate) and its
multiply-adds (by their recipe's peak) take, over the time that it took: 1 is as good as it gets.
Its share of the peak counts multiply-adds alone, and MAC/cycle are those of one core.
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
    return max(cost.nbytes / limits.read, _peak_s(cost, limits))


def _peak_s(cost: Cost, limits: Limits) -> float:
    """The least seconds that a cost's multiply-adds take."""
    peak = limits.peak(cost.recipe) if cost.recipe else 0.0
    return cost.macs / peak if peak else 0.0


def record(told: Profile, limits: Limits) -> dict[str, Any]:
    """For JSON: times in microseconds of thread 0, of_limit null where there is no limit."""
    launches = [_row(x, limits) for x in told.launches]
    return {
        "form": told.form, "rows": told.rows, "depth": told.depth,
        "run_us": _us(told.run_s), "limits": limits.record(),
        "launches": launches, "kernels": list(totals(launches, limits)),
        "arithmetic": list(arithmetic(launches, limits)),
    }  # fmt: skip


def totals(launches: Iterable[dict[str, Any]], limits: Limits) -> Iterable[dict[str, Any]]:
    """Launches of a kernel that compute the same, together; most time first."""
    yield from _sums(launches, ("kernel", "computes"), limits)


def arithmetic(launches: Iterable[dict[str, Any]], limits: Limits) -> Iterable[dict[str, Any]]:
    """All products of a recipe together, and all of attention's."""
    counted = [
        {**x, "what": "attention" if x["kernel"].startswith("attention") else "products"}
        for x in launches if x["macs"]
    ]  # fmt: skip
    yield from _sums(counted, ("what", "recipe"), limits)


def _sums(
    launches: Iterable[dict[str, Any]], keys: tuple[str, ...], limits: Limits
) -> Iterable[dict[str, Any]]:
    """Launches that agree in `keys`, added up; most time first."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for x in launches:
        row = found.setdefault(tuple(x[k] for k in keys), {
            **{k: x[k] for k in keys}, "count": 0, "time_us": 0.0, "wait_us": 0.0, "bytes": 0,
            "macs": 0, "least_us": 0.0, "peak_us": 0.0,
        })  # fmt: skip
        row["count"] += 1
        for key in ("time_us", "wait_us", "bytes", "macs", "least_us", "peak_us"):
            row[key] += x[key]
    for row in sorted(found.values(), key=lambda r: -r["time_us"] - r["wait_us"]):
        rounded = {k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()}
        yield rounded | _shares(row, limits)


def _shares(x: dict[str, Any], limits: Limits) -> dict[str, float | None]:
    """of_limit, of_peak and macs_per_cycle of a row of times and sums; None: there is none."""
    took = x["time_us"] + x["wait_us"]
    cycles = limits.per_cycle(x["macs"] / took * 1e6) if took > 0 else None
    return {
        "of_limit": _share(x["least_us"], took), "of_peak": _share(x["peak_us"], took),
        "macs_per_cycle": round(cycles, 2) if cycles else None,
    }  # fmt: skip


def show(found: dict[str, Any]) -> None:
    """Launches, then kernels, then the sums."""
    from lanewise.runtime import ruler

    click.echo(f"form {found['form']}: {found['rows']} rows after {found['depth']} positions")
    head = ("#", "kernel", "computes", "us", "wait us", "bytes", "MACs", "MAC/cycle", "of peak",
            "of limit")  # fmt: skip
    rows = [(str(x["launch"]), *_cells(x)) for x in found["launches"]]
    table(head, rows, right=(0, *range(3, 10)))
    click.echo("")
    head = ("launches", *head[1:])
    rows = [(str(x["count"]), *_cells(x)) for x in found["kernels"]]
    table(head, rows, right=(0, *range(3, 10)))
    work, wait, least = (
        sum(x[k] for x in found["launches"]) for k in ("time_us", "wait_us", "least_us")
    )
    click.echo(
        f"run {found['run_us']:.1f} us: launches {work:.1f}, waiting at barriers {wait:.1f} "
        f"(thread 0); {_share(least, found['run_us'])} of the limit"
    )
    for x in found["arithmetic"]:
        each = x["macs_per_cycle"]
        cycles = "" if each is None else f"{each:.1f} MAC/cycle of a core, "
        click.echo(f"{x['what']} ({x['recipe']}): {cycles}{x['of_peak'] or 0:.2f} of the peak")
    rates = found["limits"]
    click.echo(
        f"limits: read {rates['read']} GB/s; 10^9 multiply-adds a second: {ruler.shown(rates)}; "
        f"{rates['clock']} GHz"
    )


def _row(x: Launched, limits: Limits) -> dict[str, Any]:
    row = {
        "launch": x.launch, "kernel": x.kernel, "computes": x.computes, "recipe": x.cost.recipe,
        "time_us": _us(x.work_s), "wait_us": _us(x.wait_s), "bytes": x.cost.nbytes,
        "macs": x.cost.macs, "least_us": _us(least_s(x.cost, limits)),
        "peak_us": _us(_peak_s(x.cost, limits)),
    }  # fmt: skip
    return row | _shares(row, limits)


def _cells(x: dict[str, Any]) -> tuple[str, ...]:
    cycles = "" if x["macs_per_cycle"] is None else f"{x['macs_per_cycle']:.1f}"
    shares = ("" if x[k] is None else f"{x[k]:.2f}" for k in ("of_peak", "of_limit"))
    return (
        x["kernel"], x["computes"], f"{x['time_us']:.1f}", f"{x['wait_us']:.1f}",
        size(x["bytes"]) if x["bytes"] else "", f"{x['macs'] / 1e6:.2f} M" if x["macs"] else "",
        cycles, *shares,
    )  # fmt: skip


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 2)


def _share(least: float, took: float) -> float | None:
    return round(least / took, 3) if least > 0 and took > 0 else None
