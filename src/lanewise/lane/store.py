"""Programs on disk, by what they were compiled from: a second start plans nothing.

Laws: the key covers the spec, the cuts, the options, the target and our own sources that decide a
program; the file is proven by the cache before it is read, and anything in it that is not the
expected record counts as absent.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import astuple
from functools import cache as memo
from pathlib import Path
from typing import Any, Final

from lanewise.ir.graph import Type
from lanewise.plan.program import Buffer, Constant, FormEntry, KernelObject, Program
from lanewise.runtime import cache

VERSION: Final = "1"
_DECIDES: Final = (
    "ir", "quant", "fuse", "kernels", "plan", "emit", "models", "pipeline.py", "lane/form.py",
    "lane/spec.py",
)


@memo
def sources_digest() -> str:
    """One digest over the Python sources that decide a program's text; read once a process."""
    home = Path(__file__).parents[1]
    h = hashlib.sha256()
    for part in _DECIDES:
        path = home / part
        for source in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            h.update(cache.key(source.relative_to(home).as_posix(), source.read_bytes()).encode())
    return h.hexdigest()


def key_of(*parts: Any) -> str:
    """The key of what a program is compiled from; parts are told by their repr."""
    return cache.key("program", VERSION, sources_digest(), *map(repr, parts))


def load(key: str) -> Program | None:
    """The program of a key, or None."""
    raw = cache.load(cache.path_of("cpu/program", key, ".json"), key)
    if raw is None:
        return None
    try:
        return _program(json.loads(raw))
    except (ValueError, TypeError, KeyError):
        return None


def save(key: str, program: Program) -> None:
    """Keep a program; raises BuildError "build.disk_full", "build.cache"."""
    raw = json.dumps(astuple(program), separators=(",", ":")).encode()
    cache.store(cache.path_of("cpu/program", key, ".json"), key, raw)


def _program(found: Any) -> Program:
    (text, identity, target, objects, buffers, constants, forms, scalars, *sizes) = found
    arena, private, scratch = map(int, sizes)
    return Program(
        str(text), str(identity), str(target),
        tuple(KernelObject(s, tuple(d), tuple(y)) for s, d, y in objects),
        tuple(Buffer(n, k, int(b), _type(t)) for n, k, b, t in buffers),
        tuple(Constant(n, _type(t), p, int(b)) for n, t, p, b in constants),
        tuple(FormEntry(n, s, int(c), _pairs(i), _pairs(o)) for n, s, c, i, o in forms),
        tuple((n, k) for n, k in scalars),
        arena, private, scratch,
    )  # fmt: skip


def _type(found: Any) -> Type:
    dtype, shape = found
    return Type(str(dtype), tuple(map(int, shape)))


def _pairs(found: Any) -> tuple[tuple[str, int], ...]:
    return tuple((str(name), int(index)) for name, index in found)
