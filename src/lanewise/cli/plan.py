"""lanewise plan: what a model's step was compiled to, and why."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from lanewise.cli import common, limits, options, timing
from lanewise.cli.progress import Stages
from lanewise.cli.tables import one_json
from lanewise.errors import UsageError

if TYPE_CHECKING:
    from lanewise.lane import Lane


@click.command("plan")
@options.model_argument
@click.option("--form", default="decode", show_default=True,
              help="decode or prefill; with --time also verify.")
@click.option("--source", is_flag=True, help="Print the step as text; it parses back.")
@click.option("--program", is_flag=True, help="Print the program's text, with every form.")
@click.option("--time", "timed", is_flag=True, help="Run it, and show the time of every launch.")
@click.option("--rows", type=options.Whole(1, options.BIG), help="Rows to time.  [default: all]")
@click.option("-d", "--depth", type=options.Whole(0, options.BIG), default=0, show_default=True,
              help="Positions in the cache before what is timed.")
@options.lane_options()
@options.json_option
@options.talk_options
def command(
    model: str,
    form: str,
    source: bool,
    program: bool,
    timed: bool,
    rows: int | None,
    depth: int,
    lane: options.LaneOptions,
    as_json: bool,
    live: bool | None,
) -> None:
    """Show how MODEL's step runs: launches, kernels with their reasons, the arena, barriers.

    With --time a variant that reads the clock around every launch is compiled and run; its times
    are held against the machine's limits, measured after it.
    """
    if source + program + (timed or as_json) > 1:
        raise click.UsageError("--source and --program exclude each other, --time and --json.")
    if not timed and (depth or rows is not None):
        raise click.UsageError("--rows and --depth are for --time.")
    stages = Stages(live)
    try:
        with common.open_lane(model, lane, stages) as opened:
            stages.close()
            if timed:
                _time(model, opened, form, rows, depth, as_json)
                return
            chosen = _form(opened, form)
            if program:
                click.echo(opened.program.text)
            elif source:
                click.echo(chosen.source)
            elif as_json:
                one_json(_record(model, opened, chosen))
            else:
                click.echo(f"program {opened.program.identity}")
                click.echo(f"rows {chosen.capacity} at most")
                click.echo(chosen.plan.explain())
                click.echo("\n".join(opened.tuned.lines()))
    finally:
        stages.close()


def _time(
    model: str, lane: Lane, form: str, rows: int | None, depth: int, as_json: bool
) -> None:
    told = lane.profile(form, rows=rows, depth=depth)
    found = timing.record(told, limits.machine(lane.threads))
    if as_json:
        one_json({"model": model, "identity": lane.program.identity, **found})
    else:
        timing.show(found)


def _form(lane: Lane, name: str) -> Any:
    forms = lane.forms
    if name in forms:
        return forms[name]
    raise UsageError(
        "usage.form",
        f"the lane has no form {name!r}",
        place="--form",
        remedy=f"forms: {', '.join(forms)}",
    )


def _record(model: str, lane: Lane, form: Any) -> dict[str, Any]:
    from lanewise.plan import report

    plan = form.plan
    return {
        "model": model,
        "identity": lane.program.identity,
        "form": form.name,
        "capacity": form.capacity,
        "io": dict(form.io),
        "barriers": sum(plan.barriers),
        "memory": asdict(plan.memory),
        "rules": asdict(plan.trace),
        "tuning": lane.tuned.record(),
        "launches": report.table(plan),
    }
