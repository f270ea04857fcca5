"""The sidecar: packed weights and computed constants, kept beside the cache for the next start.

Laws:
- a sidecar is found whole or not at all: written under a temporary name, renamed when complete;
  processes that write at once each rename a whole file, and the last one wins;
- it belongs to one key (what it was computed from); another key, version, length or a damaged
  table opens as None, and the caller computes again;
- every piece of 1 MiB has a checksum, checked as it is read (it guards against accidents: zeroed
  or torn pages, flipped bits; nothing is synced to disk, so a power cut may leave such a file);
- blobs begin at multiples of 64 bytes, those over 2 MiB at multiples of 4096;
- it is written by calls, not through a map: a full disk is an error, not a dead process, and
  pages of the file are never counted as ours.

Layout: one page of header, the blobs, the table (JSON: name, offset, bytes, checksums).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import mmap
import os
import secrets
import shutil
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lanewise import disk
from lanewise.closing import Closing
from lanewise.errors import BuildError

VERSION = 1
_MAGIC = b"LWSIDE\r\n"
# magic, version, crc of the table, its offset, its bytes, bytes of the file, SHA-256 of the key
_HEADER = struct.Struct("<8sIIQQQ32s")
_CRC = struct.Struct("<I")
_PAGE = 4096
PIECE = 1 << 20
_LARGE = 2 << 20
_MOST_TABLE = 1 << 28
_AT_ONCE = 16 << 20  # bytes of one call of `put` to the system
_STALE_AFTER = 60.0  # seconds: a temporary file this old that nobody has locked is debris


class Blob(NamedTuple):
    """Where a blob lies: ``offset`` and ``nbytes``, both in bytes of the file."""

    offset: int
    nbytes: int


def _up(at: int, alignment: int) -> int:
    return -(-at // alignment) * alignment


def _checksum(piece: NDArray[np.uint8]) -> int:
    """Sums of the 64-bit words of each page, then a CRC of the sums: as fast as memory."""
    pages = len(piece) // _PAGE
    tail = zlib.crc32(piece[pages * _PAGE :].data)
    words = piece[: pages * _PAGE].view("<u8").reshape(pages, _PAGE // 8)
    return zlib.crc32(np.add.reduce(words, axis=1).data, tail)


def _bytes_of(buffer: Any) -> memoryview:
    """The bytes of a contiguous buffer (a ctypes array too, which memoryview cannot cast)."""
    if not memoryview(buffer).nbytes:
        return memoryview(bytearray())
    return np.frombuffer(buffer, np.uint8).data


def _pieces(nbytes: int) -> range:
    return range(0, nbytes, PIECE)


class Sidecar(Closing, Mapping[str, Blob]):
    """An open sidecar: name -> where it lies.  A context manager; make one with `open`."""

    def __init__(
        self, path: Path, fd: int, size: int, table: dict[str, tuple[Blob, list[int]]]
    ) -> None:
        self.path = path
        self.size = size
        self._fd = fd
        self._table = table
        self._map: mmap.mmap | None = None

    @classmethod
    def open(cls, path: str | os.PathLike[str], key: str) -> Sidecar | None:
        """The sidecar at ``path`` if it is whole and was made for ``key``, else None.

        The blobs themselves are checked when they are read.
        """
        try:
            fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except OSError:
            return None
        table = None
        try:
            size = os.fstat(fd).st_size
            table = _read_table(fd, size, key)
        except (OSError, ValueError, TypeError, RecursionError):
            return None
        finally:
            if table is None:
                os.close(fd)
        return cls(Path(path), fd, size, table) if table is not None else None

    def __getitem__(self, name: str) -> Blob:
        return self._table[name][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def damaged(self, name: str, what: str) -> BuildError:
        """The error of a blob that cannot be trusted."""
        return BuildError(
            "build.sidecar_damaged", f"packed weights {name!r} {what}", place=str(self.path),
            remedy=f"they are computed again if you remove {self.path}",
        )  # fmt: skip

    def read_into(self, name: str, out: Any, *, threads: int = 1, verify: bool = True) -> None:
        """Fill ``out``, a writable buffer of the blob's size; see `read_all`."""
        self.read_all({name: out}, threads=threads, verify=verify)

    def read_all(self, into: Mapping[str, Any], *, threads: int = 1, verify: bool = True) -> None:
        """Fill a writable buffer (of the blob's size) for each name, with so many threads.

        ``verify`` compares checksums (a few percent of the time).  Raises BuildError
        ``build.sidecar_damaged`` if a blob differs or the file cannot be read: remove the file and
        compute it again; KeyError for a name, ValueError for a buffer that does not fit.
        """
        tasks: list[tuple[str, memoryview, int, int]] = []
        for name, out in into.items():
            blob, sums = self._table[name]
            view = _bytes_of(out)
            if view.readonly or len(view) != blob.nbytes:
                raise ValueError(f"{name!r} needs {blob.nbytes} writable bytes, not {len(view)}")
            for at, checksum in zip(_pieces(blob.nbytes), sums, strict=True):
                tasks.append((name, view[at : at + PIECE], blob.offset + at, checksum))

        def read(task: tuple[str, memoryview, int, int]) -> None:
            name, view, at, checksum = task
            try:
                fill(self._fd, view, at)
            except OSError as error:
                raise self.damaged(name, f"cannot be read: {error}") from None
            if verify and _checksum(np.frombuffer(view, np.uint8)) != checksum:
                raise self.damaged(name, "differ from their checksum")

        _each(tasks, read, threads)

    def map(self, name: str, *, verify: bool = False) -> NDArray[np.uint8]:
        """The blob in place: read-only, mapped, uint8 [nbytes]; ``verify`` reads it all once.

        Raises BuildError ``build.sidecar_damaged``, as `read_all` does.
        """
        if self._map is None:
            self._map = mmap.mmap(self._fd, self.size, access=mmap.ACCESS_READ)
        blob, sums = self._table[name]
        found = np.frombuffer(self._map, np.uint8, blob.nbytes, blob.offset)
        if verify:
            for at, checksum in zip(_pieces(blob.nbytes), sums, strict=True):
                if _checksum(found[at : at + PIECE]) != checksum:
                    raise self.damaged(name, "differ from their checksum")
        return found

    def close(self) -> None:
        """Close the file; mapped arrays given out stay valid."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._map is not None:
            with contextlib.suppress(BufferError):
                self._map.close()
            self._map = None


def _each(tasks: list[Any], work: Callable[[Any], None], threads: int) -> None:
    """Run ``work`` over the tasks with so many threads, the caller being one; the first error is
    raised and ends the rest."""
    waiting = iter(tasks)
    lock = threading.Lock()
    failed: list[BaseException] = []

    def run() -> None:
        while not failed:
            with lock:
                task = next(waiting, None)
            if task is None:
                return
            try:
                work(task)
            except BaseException as error:
                failed.append(error)

    helpers = [threading.Thread(target=run) for _ in range(min(threads, len(tasks)) - 1)]
    for helper in helpers:
        helper.start()
    run()
    for helper in helpers:
        helper.join()
    if failed:
        raise failed[0]


def fill(fd: int, view: memoryview, at: int) -> None:
    """Read a file from ``at`` on, as many bytes as ``view`` has; OSError where it ends before."""
    done = 0
    while done < len(view):
        if hasattr(os, "preadv"):
            got = os.preadv(fd, [view[done:]], at + done)
        else:
            data = os.pread(fd, len(view) - done, at + done)
            got = len(data)
            view[done : done + got] = data
        if got == 0:
            raise OSError(errno.EIO, "the file has become shorter")
        done += got


def _read_table(fd: int, size: int, key: str) -> dict[str, tuple[Blob, list[int]]] | None:
    """The checked table, or None; raises OSError or ValueError for what is not a sidecar."""
    head = os.pread(fd, _HEADER.size + _CRC.size, 0)
    if len(head) != _HEADER.size + _CRC.size:
        return None
    magic, version, crc, at, nbytes, length, digest = _HEADER.unpack_from(head)
    if magic != _MAGIC or version != VERSION or digest != hashlib.sha256(key.encode()).digest():
        return None
    if zlib.crc32(head[: _HEADER.size]) != _CRC.unpack_from(head, _HEADER.size)[0]:
        return None
    if length != size or at + nbytes != size or nbytes > _MOST_TABLE:
        return None
    text = bytearray(nbytes)
    fill(fd, memoryview(text), at)
    if zlib.crc32(text) != crc:
        return None
    table: dict[str, tuple[Blob, list[int]]] = {}
    for name, offset, count, sums in json.loads(text):
        if not 0 <= offset <= offset + count <= at or len(sums) != len(_pieces(count)):
            return None
        table[name] = (Blob(offset, count), sums)
    return table


class Room:
    """A reserved place of a sidecar, written in pieces by any threads."""

    def __init__(self, writer: SidecarWriter, blob: Blob) -> None:
        self.blob = blob
        self._writer = writer
        self._sums: list[int | None] = [None] * len(_pieces(blob.nbytes))

    def write(self, at: int, data: Any) -> None:
        """Bytes from `at` on, a multiple of `PIECE`, ending at another or at the end; they are
        summed here, while they are near.  Raises BuildError as the writer does."""
        view = _bytes_of(data)
        end = at + len(view)
        if at % PIECE or not 0 <= at <= end <= self.blob.nbytes:
            raise ValueError(f"bytes {at} to {end} are no pieces of {self.blob.nbytes}")
        if end % PIECE and end != self.blob.nbytes:
            raise ValueError(f"{end} is within a piece")
        self._writer.write(view, self.blob.offset + at)
        words = np.frombuffer(view, np.uint8)
        for piece in _pieces(len(view)):
            self._sums[(at + piece) // PIECE] = _checksum(words[piece : piece + PIECE])

    def sums(self) -> list[int]:
        """The checksum of every piece; ValueError where one was never written."""
        found = [s for s in self._sums if s is not None]
        if len(found) < len(self._sums):
            raise ValueError(f"{len(self._sums) - len(found)} pieces were not written")
        return found


class SidecarWriter(Closing):
    """Writes a sidecar: reserve, fill, commit.  A context manager: without a commit nothing stays.

    Raises BuildError ``build.disk_full``, ``build.file_size`` or ``build.cache_unwritable`` from
    any method; `need` is what they tell of the bytes that all of it will take.

    with SidecarWriter(path, key) as writer:
        writer.put("w", np.full(1 << 20, 7, np.uint8))
        sidecar = writer.commit()
    """

    def __init__(self, path: str | os.PathLike[str], key: str, need: int = 0) -> None:
        self.path = Path(path)
        self._need = need
        self._key = key
        self._table: dict[str, Room] = {}
        self._end = _PAGE
        self._fd = -1
        self._temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}.tmp")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _sweep(self.path)
            self._fd = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            _lock(self._fd)
        except OSError as error:
            self.abort()
            raise self._failed(error) from None

    def _failed(self, error: OSError) -> BuildError:
        held = 0
        with contextlib.suppress(OSError, ValueError):
            held = os.fstat(self._fd).st_blocks * 512
        return disk.refused(
            error, self.path.parent, "the packed weights", need=max(self._need, self._end),
            held=held, code="build.cache_unwritable",
        )  # fmt: skip

    def reserve(self, name: str, nbytes: int) -> Room:
        """A place of so many bytes, aligned to 64 bytes of the file (over 2 MiB: 4096); write all
        of it before `commit`.  Raises ValueError for a name that was taken."""
        if name in self._table or nbytes < 0:
            raise ValueError(f"{name!r} is reserved already, or has {nbytes} bytes")
        offset = _up(self._end, _PAGE if nbytes > _LARGE else 64)
        found = Room(self, Blob(offset, nbytes))
        self._table[name] = found
        self._end = offset + nbytes
        return found

    def put(self, name: str, data: Any) -> None:
        """Reserve and write a contiguous buffer."""
        source = _bytes_of(data)
        room = self.reserve(name, len(source))
        for at in range(0, len(source), _AT_ONCE):
            room.write(at, source[at : at + _AT_ONCE])

    def write(self, data: memoryview, at: int) -> None:
        """Bytes of the file, from any thread; refusals of the system are our errors."""
        try:
            _write(self._fd, data, at)
        except OSError as error:
            raise self._failed(error) from None

    def commit(self) -> Sidecar:
        """Write checksums and table, and rename into place.  The sidecar, open.  Raises
        ValueError where a place was not written whole."""
        rows = []
        table: dict[str, tuple[Blob, list[int]]] = {}
        for name, room in self._table.items():
            blob, sums = room.blob, room.sums()
            table[name] = (blob, sums)
            rows.append([name, blob.offset, blob.nbytes, sums])
        text = json.dumps(rows, separators=(",", ":")).encode()
        size = self._end + len(text)
        digest = hashlib.sha256(self._key.encode()).digest()
        head = _HEADER.pack(
            _MAGIC, VERSION, zlib.crc32(text), self._end, len(text), size, digest
        )  # fmt: skip
        try:
            os.ftruncate(self._fd, size)
            _write(self._fd, text, self._end)
            _write(self._fd, head + _CRC.pack(zlib.crc32(head)), 0)
            if self.path.is_dir() and not self.path.is_symlink():
                shutil.rmtree(self.path)  # no sidecar, and in its way
            os.replace(self._temporary, self.path)
        except OSError as error:
            failed = self._failed(error)
            self.abort()
            raise failed from None
        fd, self._fd = self._fd, -1
        self._release()
        return Sidecar(self.path, fd, size, table)

    def abort(self) -> None:
        """Remove what was written; harmless after `commit`."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary)
        self._release()

    def _release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._table.clear()

    def close(self) -> None:
        """As `abort`."""
        self.abort()


def _write(fd: int, data: bytes | memoryview, at: int) -> None:
    view = memoryview(data)
    while len(view):
        done = os.pwrite(fd, view, at)
        view, at = view[done:], at + done


def _lock(fd: int) -> bool:
    """Mark a temporary file as being written; False if somebody else has it."""
    try:
        import fcntl
    except ImportError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sweep(path: Path) -> None:
    """Remove temporary files of this sidecar whose writers have died."""
    for old in path.parent.glob(f".{path.name}.*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime < _STALE_AFTER:
                continue
            fd = os.open(old, os.O_RDWR)
            try:
                if _lock(fd):
                    os.unlink(old)
            finally:
                os.close(fd)
