"""Compiled files on disk: one file per key, proven before it is used.

Laws: a file is written under a temporary name in the same folder tree and renamed, so that a
reader sees all of it or nothing, whatever other processes do.  It ends in a trailer: magic, its
key, and a digest of everything before; a file whose trailer does not prove it (cut short,
flipped, moved from another key) counts as absent and is made again.  A hit writes nothing, so
that a read-only cache that holds what is needed serves.  (ELF readers ignore a trailer.)
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lanewise import disk
from lanewise.errors import BuildError

MAGIC = b"LWCACHE1"
TRAILER = len(MAGIC) + 32 + 32
# What a killed build left is swept after so many seconds; where locks do not tell, after a day.
_STALE_S, _OLD_S = 60.0, 24 * 3600.0
# What a compiler and a linker write for one unit, generously.
_NEEDED = 1 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the cache: ``kind`` is its folder ("cpu/lib"), sizes in bytes, ``mtime`` in
    seconds since the epoch."""

    kind: str
    name: str
    path: Path
    nbytes: int
    mtime: float


def root() -> Path:
    """The user's cache directory; it may not exist yet, and need not be writable to be read.

    Absolute, since compilers run in folders of their own."""
    from lanewise import settings

    return settings.cache_path().absolute()


def key(*parts: str | bytes) -> str:
    """SHA-256, in hexadecimal, over parts and their lengths."""
    h = hashlib.sha256()
    for part in parts:
        # Names of files may hold bytes that are no UTF-8.
        raw = part.encode(errors="surrogateescape") if isinstance(part, str) else part
        h.update(len(raw).to_bytes(8, "little"))
        h.update(raw)
    return h.hexdigest()


def path_of(kind: str, name: str, suffix: str) -> Path:
    """Where the file of a key lies."""
    return root() / kind / f"{name}{suffix}"


def valid(path: Path, name: str) -> bool:
    """True if the file is there and its trailer proves it to be the one of key ``name``."""
    return load(path, name) is not None


def load(path: Path, name: str) -> bytes | None:
    """The proven content (without its trailer), or None."""
    try:
        with open(path, "rb", opener=_regular) as f:
            raw = f.read()
    except OSError:
        return None
    if len(raw) < TRAILER or raw[-TRAILER:] != _trailer(memoryview(raw)[:-TRAILER], name):
        return None
    return raw[:-TRAILER]


def _regular(path: str, flags: int) -> int:
    """Opens like `os.open`, but does not wait for the other end of a pipe."""
    fd = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return fd


def _trailer(body: bytes | memoryview, name: str) -> bytes:
    named = hashlib.sha256(name.encode()).digest()
    h = hashlib.sha256(named)
    h.update(body)
    return MAGIC + named + h.digest()


def publish(made: Path, path: Path, name: str) -> Path:
    """Give a finished temporary file its trailer and its place; returns the place.

    Raises BuildError ``build.disk_full`` or ``build.cache``.
    """
    with writing(path.parent):
        with made.open("rb") as f:
            trailer = _trailer(f.read(), name)
        _append(made, trailer)
        path.parent.mkdir(parents=True, exist_ok=True)
        # A folder where the file belongs is no entry of ours, and in its way.
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        os.replace(made, path)
    return path


def store(path: Path, name: str, body: bytes) -> Path:
    """Write content under a key; raises as `publish` does."""
    with workspace() as work:
        made = work / "file"
        with writing(work):
            made.write_bytes(body)
        return publish(made, path, name)


def _append(path: Path, raw: bytes) -> None:
    with path.open("ab") as f:
        f.write(raw)


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """A private folder inside the cache, gone at the end; raises as `publish` does."""
    parent = root() / "tmp"
    with writing(parent):
        parent.mkdir(parents=True, exist_ok=True)
        _sweep(parent)
        work = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=parent))
    alive, _ = _claim(work)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if alive is not None:
            os.close(alive)


def _sweep(parent: Path) -> None:
    """Remove what killed processes left: a folder's lock dies with its process."""
    for left in parent.iterdir():
        with contextlib.suppress(OSError):
            age = time.time() - left.stat().st_mtime
            if age < _STALE_S:
                continue
            handle, ours = _claim(left)
            try:
                if ours or (ours is None and age > _OLD_S):
                    shutil.rmtree(left, ignore_errors=True)
            finally:
                if handle is not None:
                    os.close(handle)


def _claim(folder: Path) -> tuple[int | None, bool | None]:
    """(an open handle of the folder, whether we now hold its lock; None: there are no locks)."""
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except (ImportError, OSError):
        return None, None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        return handle, False if e.errno in (errno.EAGAIN, errno.EACCES) else None
    return handle, True


@contextlib.contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turn what the file system refuses into our errors."""
    try:
        yield
    except OSError as e:
        raise refusal(e, place) from e


def refusal(e: OSError, place: Path) -> BuildError:
    """BuildError ``build.disk_full``, ``build.file_size`` or ``build.cache`` for a failed write at
    a place."""
    return disk.refused(e, place, "the cache", code="build.cache")


def full() -> bool:
    """True if so little space is left that a compiler may have failed for that reason alone."""
    with contextlib.suppress(OSError):
        return shutil.disk_usage(root()).free < _NEEDED
    return False


@contextlib.contextmanager
def turn(lock: str = "build.lock", wait_s: float = 60.0) -> Iterator[None]:
    """One process at a time for what ``lock`` names, so that none repeats another's work.

    Only a courtesy: without it the same file is made twice and renamed twice.  So a lock that
    cannot be had (a stopped process, a file system without locks) is not waited for long.
    """
    try:
        import fcntl

        handle = os.open(root() / lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except (ImportError, OSError):
        yield
        return
    _TURNS.add(handle)
    try:
        end = time.monotonic() + wait_s
        while time.monotonic() < end:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as e:
                if e.errno not in (errno.EAGAIN, errno.EACCES):
                    break
                time.sleep(0.02)
        yield
    finally:
        if handle in _TURNS:
            _TURNS.discard(handle)
            os.close(handle)  # drops the lock


# A child process inherits the handles that its parent's threads wait with: it would hold their
# locks, and wait for itself.
_TURNS: set[int] = set()


def _after_fork() -> None:
    while _TURNS:
        os.close(_TURNS.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def entries() -> list[Entry]:
    """Every file of the cache, sorted by kind and name.  BuildError ``build.cache``: the cache is
    no folder."""
    top = root()
    if disk.no_folder(top) is not None:
        raise refusal(OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)), top)
    found = []
    for folder, _, names in os.walk(top):
        for name in names:
            path = Path(folder, name)
            with contextlib.suppress(OSError):
                state = path.stat()
                kind = str(path.parent.relative_to(top))
                found.append(Entry(kind, name, path, state.st_size, state.st_mtime))
    return sorted(found, key=lambda e: (e.kind, e.name))


def clear(kinds: tuple[str, ...] = ("cpu", "tmp")) -> int:
    """Remove the named kinds (folders under the cache directory); returns the bytes freed.

    Programs that run keep what they have mapped; a build at work in another process is waited
    for, up to ten seconds.  Raises BuildError ``build.cache``.
    """
    freed = 0
    with turn(wait_s=10.0):
        for kind in kinds:
            folder = root() / kind
            # Strictly inside, whatever the name says and wherever links lead.
            if not folder.is_dir() or root().resolve() not in folder.resolve().parents:
                continue
            before = _size(folder)
            with writing(folder):
                if kind == "tmp":
                    _sweep(folder)
                else:
                    shutil.rmtree(folder)
            freed += before - _size(folder)
    return freed


def _size(folder: Path) -> int:
    return sum(e.nbytes for e in entries() if e.path.is_relative_to(folder))
