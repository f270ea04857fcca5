"""lanewise doctor: whether this machine can compile and run."""

from __future__ import annotations

import click

from lanewise.cli import options
from lanewise.cli.guard import FAILED
from lanewise.cli.tables import fields, one_json


@click.command("doctor")
@options.json_option
def command(as_json: bool) -> int:
    """Check CPU features, the compiler, the cache and threads; exit code 1 if a check fails."""
    from lanewise.runtime import doctor

    rows = doctor.rows()
    if as_json:
        one_json({"ok": all(r.ok for r in rows), "rows": [_row(r) for r in rows]})
    else:
        fields([(r.name, r.value if r.ok else f"FAILED: {r.value}") for r in rows])
    return 0 if all(r.ok for r in rows) else FAILED


def _row(row: object) -> dict[str, object]:
    return {name: getattr(row, name) for name in ("name", "value", "ok")}
