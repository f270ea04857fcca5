"""What a file system refuses to the cache, in our words: the cause, the numbers, and a remedy.

Laws: a message never shows the system's error numbers; what is full says how much is needed and
how much is free; every remedy of the cache names LANEWISE_CACHE_DIR.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path

from lanewise.errors import BuildError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_ELSEWHERE = "set LANEWISE_CACHE_DIR to a folder"


def refused(
    error: OSError, place: Path, what: str, *, need: int = 0, held: int = 0, code: str
) -> BuildError:
    """The BuildError of a write of `what` at a place (a folder) that failed.

    ``build.disk_full``, ``build.file_size`` (a limit of a file's size), else `code`.  `need`: bytes
    that all of it takes (0: not known); `held`: bytes of it that are written, and given back.
    """
    if error.errno in _FULL:
        free = -1
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(_there(place)).free + held
        quota = os.strerror(errno.EDQUOT) if error.errno == errno.EDQUOT else ""
        return full(place, what, need, free, quota)
    if error.errno == errno.EFBIG:
        size = f" of {_size(need)}" if need else ""
        return BuildError(
            "build.file_size",
            f"{what} cannot be written: a file{size} is larger than is allowed there",
            place=str(place), remedy="raise the limit of a file's size (ulimit -f), "
            f"or {_ELSEWHERE} on a disk that takes such files",
        )  # fmt: skip
    # What removes folders tells names without their folder.
    where = str(error.filename or "")
    where = where if os.path.isabs(where) else str(place)
    if (barrier := no_folder(place)) is not None:
        return BuildError(
            code, f"{what} cannot be written: it is no folder", place=str(barrier),
            remedy=_ELSEWHERE,
        )  # fmt: skip
    return BuildError(
        code, f"{what} cannot be written: {error.strerror or type(error).__name__}", place=where,
        remedy="make the folder writable, or set LANEWISE_CACHE_DIR to one that is",
    )  # fmt: skip


def full(place: Path, what: str, need: int, free: int, cause: str = "") -> BuildError:
    """BuildError ``build.disk_full``; need, free: bytes (need 0, free -1: not known)."""
    numbers = [f"{_size(need)} are needed"] if need else []
    numbers += [f"{_size(free)} are free"] if free >= 0 else []
    told = "; ".join(filter(None, [", ".join(numbers), cause and cause.lower()]))
    return BuildError(
        "build.disk_full", f"no space is left for {what}" + (f": {told}" if told else ""),
        place=str(place),
        remedy=f"free some space (lanewise cache clear), or {_ELSEWHERE} on another disk",
    )  # fmt: skip


def limited() -> bool:
    """True where this process and its children may only write files of some size."""
    try:
        import resource
    except ImportError:  # a system without such limits
        return False
    return resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY


def no_folder(place: Path) -> Path | None:
    """What is in the way of a folder at a place: something that is there and is no folder."""
    there = _there(place)
    return None if there.is_dir() else there


def _there(place: Path) -> Path:
    """The place, or the nearest folder above it, that is there."""
    return next((p for p in (place, *place.parents) if os.path.lexists(p)), place)


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:,.1f} kB"
