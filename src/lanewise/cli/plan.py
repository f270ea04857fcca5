"""lanewise plan: what a model's step was compiled to, and why."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from lanewise.cli import common, options
from lanewise.cli.progress import Stages
from lanewise.cli.tables import one_json
from lanewise.errors import UsageError

if TYPE_CHECKING:
    from lanewise.lane import Lane


@click.command("plan")
@options.model_argument
@click.option("--form", default="decode", show_default=True, help="decode or prefill.")
@click.option("--source", is_flag=True, help="Print the step as text; it parses back.")
@click.option("--program", is_flag=True, help="Print the program's text, with every form.")
@options.lane_options()
@options.json_option
@options.talk_options
def command(
    model: str,
    form: str,
    source: bool,
    program: bool,
    lane: options.LaneOptions,
    as_json: bool,
    live: bool | None,
) -> None:
    """Show how MODEL's step runs: launches, kernels with their reasons, the arena, barriers."""
    if source + program + as_json > 1:
        raise click.UsageError("--source, --program and --json exclude one another.")
    stages = Stages(live)
    try:
        with common.open_lane(model, lane, stages) as opened:
            stages.close()
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
    finally:
        stages.close()


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
        "launches": report.table(plan),
    }
