"""lanewise doctor: whether this machine can compile and run."""

from __future__ import annotations

from dataclasses import asdict

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
    ok = all(row.ok for row in rows)
    if as_json:
        one_json({"ok": ok, "rows": [asdict(row) for row in rows]})
        return 0 if ok else FAILED
    shown: list[tuple[str, str]] = []
    for row in rows:
        shown.append((row.name, row.value if row.ok else f"FAILED: {row.value}"))
        if row.remedy:
            shown.append(("", f"remedy: {row.remedy}"))
    fields(shown)
    return 0 if ok else FAILED
