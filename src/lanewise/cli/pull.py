"""lanewise pull: a model into the cache."""

from __future__ import annotations

import click

from lanewise.cli import options
from lanewise.cli.progress import Stages
from lanewise.cli.tables import one_json


@click.command("pull")
@options.model_argument
@options.offline_option
@options.json_option
@options.talk_options
def command(model: str, offline: bool | None, as_json: bool, live: bool | None) -> None:
    """Download MODEL (a name from `lanewise list`) and print its path.

    What is in the cache already is not downloaded again.
    """
    import lanewise

    stages = Stages(live)
    try:
        path = lanewise.pull(model, offline=offline, progress=stages)
    finally:
        stages.close()
    if as_json:
        one_json({"model": model, "path": str(path), "bytes": path.stat().st_size})
    else:
        click.echo(str(path))
