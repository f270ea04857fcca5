"""lanewise list: the models that have a name."""

from __future__ import annotations

import click

from lanewise.cli import options
from lanewise.cli.tables import one_json, size, table


@click.command("list")
@options.json_option
def command(as_json: bool) -> None:
    """List the models that have a name, and which of them are in the cache."""
    from lanewise.checkpoint import names

    models = names.list_models()
    if as_json:
        rows = [
            {
                "name": m.name,
                "bytes": m.bytes,
                "path": None if m.path is None else str(m.path),
                "description": m.description,
            }
            for m in models
        ]
        one_json({"models": rows})
        return
    table(
        ("name", "size", "here", "what it is"),
        [(m.name, size(m.bytes), "no" if m.path is None else "yes", m.description) for m in models],
        right=(1,),
    )
