"""lanewise cache: what is kept on disk, and how to be rid of it."""

from __future__ import annotations

from pathlib import Path

import click

from lanewise.cli import options
from lanewise.cli.tables import one_json, size, table
from lanewise.errors import UsageError


@click.group("cache")
def command() -> None:
    """Look at the cache, or empty it.

    It holds models, packed weights and compiled programs; all of it can be made again.
    LANEWISE_CACHE_DIR names another folder.
    """


@command.command("ls")
@click.option("--files", is_flag=True, help="Every file, not only the folders.")
@options.json_option
def ls(files: bool, as_json: bool) -> None:
    """List what is in the cache, by folder."""
    from lanewise.runtime import cache

    entries = cache.entries()
    kinds = _kinds()
    if as_json:
        shown = [{"kind": e.kind, "name": e.name, "bytes": e.nbytes} for e in entries]
        total = sum(e.nbytes for e in entries)
        one_json({"path": str(cache.root()), "bytes": total, "kinds": kinds, "files": shown})
        return
    if files:
        rows = [(f"{e.kind}/{e.name}", 1, e.nbytes) for e in entries]
    else:
        rows = [(kind, count, nbytes) for kind, (count, nbytes) in kinds.items()]
    rows.append(("in all", len(entries), sum(e.nbytes for e in entries)))
    table(("what", "files", "size"), [(n, c, size(b)) for n, c, b in rows], right=(1, 2))
    click.echo(f"in {cache.root()}")


@command.command("clear")
@click.argument("kinds", nargs=-1)
@options.json_option
def clear(kinds: tuple[str, ...], as_json: bool) -> None:
    """Remove the folders KINDS of `lanewise cache ls`; without a name, all of them."""
    from lanewise.runtime import cache

    known = _kinds()
    for kind in kinds:
        if kind not in known:
            raise UsageError(
                "usage.cache",
                f"the cache has no folder {kind!r}",
                remedy=f"folders: {', '.join(known) or 'none, it is empty'}",
            )
    freed = cache.clear(kinds or tuple(known))
    if as_json:
        one_json({"freed": freed})
    else:
        click.echo(f"freed {size(freed)}")


def _kinds() -> dict[str, tuple[int, int]]:
    """Top folder -> (number of files, bytes); files at the top itself are not a kind."""
    from lanewise.runtime import cache

    sums: dict[str, tuple[int, int]] = {}
    for entry in cache.entries():
        top = Path(entry.kind).parts[0] if entry.kind != "." else ""
        if top:
            count, nbytes = sums.get(top, (0, 0))
            sums[top] = (count + 1, nbytes + entry.nbytes)
    return sums
