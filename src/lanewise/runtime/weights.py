"""A program's constants made ready: packed once, kept in a sidecar, read with all threads.

Laws: the sidecar of a program holds every constant as its kernels want it, so that a second start
reads it and nothing else; it is keyed by the checkpoint's digest, the constants' manifest and the
packers' sources; a damaged one is noticed by its checksums and made again.  Packing goes through
a small buffer of each thread into the file and, where they are wanted there, into memory, so that
the weights are never in our memory twice, and a first start does not read what it has just written.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lanewise.checkpoint.gguf_file import Stored
from lanewise.checkpoint.sidecar import PIECE, Room, Sidecar, SidecarWriter
from lanewise.errors import BuildError, RunError
from lanewise.kernels.layout import PANEL
from lanewise.plan.program import Constant, Program
from lanewise.runtime import build, cache
from lanewise.runtime.library import Library
from lanewise.runtime.memory import Block
from lanewise.runtime.pool import default_threads

Bytes = NDArray[np.uint8]
Progress = Callable[[str, int, int, str], object]
#: name -> the constant's raw bytes: rows as the checkpoint has them, or an array, or `Stored`.
Source = Callable[[str], Any]

_LINE = 64
_PACK = 4 * PIECE  # bytes that one thread packs and writes at a time
_BATCH = 64 << 20  # bytes between two reports of progress
VERSION = "1"


class Constants(Mapping[str, Bytes]):
    """Name -> stored bytes (uint8, 64-aligned, read-only if mapped); keeps them alive."""

    def __init__(self, arrays: dict[str, Bytes], holds: Block | Sidecar) -> None:
        self._arrays = arrays
        self._holds = holds

    def __getitem__(self, name: str) -> Bytes:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return _bytes_in(self._arrays)

    def close(self) -> None:
        """Let go; the memory is freed when no session holds a constant any more."""
        self._arrays.clear()
        self._holds.close()


def load_constants(
    program: Program,
    source: Source,
    cache_key: str,
    *,
    target: build.Target,
    owner: str = "",
    threads: int | None = None,
    weights_in: str | None = None,
    progress: Progress | None = None,
) -> Constants:
    """Every constant of the program, as `Session` wants them.

    ``source(name)`` gives raw rows (a bytes-like object, an array, a record whose ``data`` is
    one, or bytes of a file, `Stored`); it is asked only when there is no good sidecar.
    ``cache_key`` names what the source gives (a checkpoint's digest and what else went in).
    ``owner`` says whose it is (a checkpoint's path): when a sidecar is made, those that the owner
    had with other cache keys go, so that a file that changes leaves none behind. ``weights_in``:
    "memory" or "map" (default: the setting). ``progress("pack" | "load", done, total, name)``
    counts bytes.

    Raises RunError ``run.memory``, ``run.constant`` (the source's bytes do not fit the manifest),
    BuildError ``build.disk_full``, ``build.file_size``, ``build.cache_unwritable``, and what
    building packers raises.
    """
    from lanewise import settings

    count = default_threads() if threads is None else threads
    where = settings.resolve("weights_in", weights_in)
    path, key = sidecar_path(program, cache_key, owner)
    read = _map if where == "map" else _read
    opened = Sidecar.open(path, key)
    if opened is not None:
        try:
            return read(opened, program, count, progress)
        except BuildError as e:
            opened.close()
            if e.code != "build.sidecar_damaged":
                raise
            path.unlink(missing_ok=True)
    with cache.turn("weights.lock"):
        opened = Sidecar.open(path, key)
        if opened is None:
            packing = _Packing(program, source, target, count, progress)
            made = _pack(packing, (path, key), where == "memory")
            if isinstance(made, Constants):
                return made
            opened = made
    return read(opened, program, count, progress)


def sidecar_path(program: Program, cache_key: str, owner: str = "") -> tuple[Path, str]:
    """(file, key) of the program's sidecar.  Programs with the same constants share one."""
    manifest = [f"{c.name} {c.type} {c.packer} {c.nbytes}" for c in program.constants]
    what = cache.key(VERSION, cache_key, *manifest)
    layout = cache.key(build.headers_digest(build.KERNELS))
    parts = (cache.key(owner)[:12], cache.key(cache_key)[:12], what[:16], layout[:16])
    name = "-".join(parts if owner else ("shared", *parts[1:]))
    return cache.root() / "weights" / f"{name}.weights", what + layout


def _outdated(path: Path) -> Iterator[Path]:
    """Sidecars that nobody will ask for once there is this one: of the same constants in another
    layout, of the same owner with another cache key."""
    owner, given, what, _ = path.name.split("-")
    for old in path.parent.glob(f"{owner}-*-*-*.weights"):
        _, other, constants, _ = old.name.split("-", 3)
        if old != path and (constants == what or (other != given and owner != "shared")):
            yield old


def _read(sidecar: Sidecar, program: Program, threads: int, progress: Progress | None) -> Constants:
    """Into memory of our own, and the file is closed."""
    with sidecar:
        block, arrays = _room({c.name: sidecar[c.name].nbytes for c in program.constants})
        total, done = _bytes_in(arrays), 0
        for batch in _batches(arrays):
            sidecar.read_all(batch, threads=threads)
            done += _bytes_in(batch)
            _tell(progress, "load", done, total, next(reversed(batch)))
        _tell(progress, "load", total, total, "")
        return Constants(arrays, block)


def _room(sizes: Mapping[str, int]) -> tuple[Block, dict[str, Bytes]]:
    """Memory for constants of these sizes, and each one's place in it."""
    places: dict[str, int] = {}
    total = 0
    for name, nbytes in sizes.items():
        places[name] = total
        total += _up(nbytes)
    block = Block(total, "the weights")
    return block, {n: block.bytes[at : at + sizes[n]] for n, at in places.items()}


def _map(sidecar: Sidecar, program: Program, threads: int, progress: Progress | None) -> Constants:
    """In place, in the file's own pages; read through once, for the checksums."""
    arrays: dict[str, Bytes] = {}
    total = sum(sidecar[c.name].nbytes for c in program.constants)
    done = 0
    with ThreadPoolExecutor(max_workers=threads) as workers:
        names = [c.name for c in program.constants]
        if names:
            sidecar.map(names[0])  # one thread makes the mapping, all share it
        found = workers.map(lambda name: sidecar.map(name, verify=True), names)
        for name, array in zip(names, found, strict=True):
            arrays[name] = array
            done += array.nbytes
            _tell(progress, "load", done, total, name)
    return Constants(arrays, sidecar)


def _batches(arrays: dict[str, Bytes]) -> Iterator[dict[str, Bytes]]:
    batch: dict[str, Bytes] = {}
    size = 0
    for name, array in arrays.items():
        batch[name] = array
        size += array.nbytes
        if size >= _BATCH:
            yield batch
            batch, size = {}, 0
    if batch:
        yield batch


@dataclass(frozen=True)
class _Packing:
    """Makes a program's sidecar."""

    program: Program
    source: Source
    target: build.Target
    threads: int
    progress: Progress | None

    def kept(self, place: tuple[Path, str]) -> Constants:
        """The constants in memory, and in a sidecar for the next start."""
        block, arrays = _room({c.name: self._size(c) for c in self.program.constants})
        try:
            self.into(place, arrays).close()
        except BaseException:
            arrays.clear()
            block.close()
            raise
        total = _bytes_in(arrays)
        _tell(self.progress, "load", total, total, "")
        return Constants(arrays, block)

    def into(self, place: tuple[Path, str], keep: Mapping[str, Bytes]) -> Sidecar:
        """The sidecar; those that it replaces go.  What is packed also goes into `keep`."""
        path, key = place
        constants = self.program.constants
        total = sum(c.nbytes for c in constants)
        done = 0
        with (
            SidecarWriter(path, key, total) as writer,
            ThreadPoolExecutor(max_workers=self.threads) as workers,
        ):
            for constant in constants:
                room = writer.reserve(constant.name, self._size(constant))
                both = _Both(room, keep.get(constant.name))
                _pack_one(constant, self.source, both, self._packers, workers)
                done += constant.nbytes
                _tell(self.progress, "pack", done, total, constant.name)
            sidecar = writer.commit()
        for old in _outdated(path):
            with contextlib.suppress(OSError):
                old.unlink()
        return sidecar

    @cached_property
    def _packers(self) -> dict[str, _Packer]:
        return _packers(self.program.constants, self.target, self.progress)

    def _size(self, constant: Constant) -> int:
        """Bytes of a constant as it is stored."""
        packs = constant.packer == "panels"
        return self._packers[constant.type.dtype].size(constant) if packs else constant.nbytes


def _pack(packing: _Packing, place: tuple[Path, str], here: bool) -> Constants | Sidecar:
    """The constants, `here` in memory; or the sidecar that they are in."""
    return packing.kept(place) if here else packing.into(place, {})


class _Both:
    """A place of the sidecar, and of memory if it is wanted there."""

    def __init__(self, room: Room, keep: Bytes | None) -> None:
        self._room, self._keep = room, keep
        self.nbytes = room.blob.nbytes

    def write(self, at: int, data: Bytes) -> None:
        self._room.write(at, data)
        if self._keep is not None:
            self._keep[at : at + len(data)] = data


def _pack_one(
    constant: Constant,
    source: Source,
    room: _Both,
    packers: dict[str, _Packer],
    workers: ThreadPoolExecutor,
) -> None:
    given = source(constant.name)
    raw = given if isinstance(given, Stored) else _Held(raw_bytes(given))
    if constant.packer == "panels":
        packers[constant.type.dtype](constant, raw, room, workers)
    else:
        _check(constant, raw.nbytes, constant.nbytes)
        for at in range(0, raw.nbytes, _PACK):
            data = np.empty(min(_PACK, raw.nbytes - at), np.uint8)
            raw.read_into(at, data)
            room.write(at, data)


class _Held:
    """Raw bytes that are in memory."""

    def __init__(self, raw: Bytes) -> None:
        self.raw, self.nbytes = raw, raw.nbytes

    def read_into(self, at: int, out: Bytes) -> None:
        out[:] = self.raw[at : at + len(out)]


class _Pages:
    """A buffer that grows, of pages of its own: an allocator would keep them for later."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def of(self, nbytes: int) -> Bytes:
        if self._bytes.nbytes < nbytes:
            self._bytes = np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)
        return self._bytes


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Of `count` matrices [n, k], one after the other: panels of one, bytes of a panel, of one
    packed and of one as it comes."""

    count: int
    n: int
    k: int
    panels: int
    panel: int
    each: int
    raw: int


class _Packer:
    """The native packer of one format."""

    def __init__(self, library: Library, name: str) -> None:
        self._bytes = library.function(f"lw_packed_bytes_{name}", "lll")
        self._pack = library.function(f"lw_pack_{name}", "vppllll")
        self._local = threading.local()

    def size(self, constant: Constant) -> int:
        """Bytes of the packed matrix.  The packer knows best; a manifest that is far off names
        another matrix."""
        *lead, n, k = constant.type.shape
        size = math.prod(lead) * int(self._bytes(n, k))
        if abs(size - constant.nbytes) > _LINE + size // 16:
            raise _unfit(constant, f"packs into {size} bytes, not {constant.nbytes}")
        return max(size, constant.nbytes)

    def __call__(
        self, constant: Constant, raw: Stored | _Held, room: _Both, workers: ThreadPoolExecutor
    ) -> None:
        *lead, n, k = constant.type.shape
        count = math.prod(lead)
        _check(constant, raw.nbytes, raw_size(constant))
        sizes = _Sizes(count, n, k, -(-n // PANEL), int(self._bytes(2 * PANEL, k)) // 2,
                       int(self._bytes(n, k)), raw.nbytes // count)  # fmt: skip
        total = room.nbytes

        def piece(first: int) -> None:
            data = self._piece(sizes, raw, first, min(first + _PACK, total))
            room.write(first, data)

        # list(): wait for all, and raise what any raised.
        list(workers.map(piece, range(0, total, _PACK)))

    def _piece(self, sizes: _Sizes, raw: Stored | _Held, first: int, end: int) -> Bytes:
        """Bytes [first, end) of the packed matrices, in this thread's buffer: the panels that they
        touch, packed whole."""
        local = self._local.__dict__
        buffer = local.setdefault("out", _Pages()).of(end - first + 2 * sizes.panel + _LINE)
        base = -buffer.ctypes.data % _LINE + sizes.panel  # where `first` goes
        for e in range(first // sizes.each, -(-end // sizes.each)):
            start = e * sizes.each
            panels = sizes.panels if e < sizes.count else 0
            low = max(0, (first - start) // sizes.panel)
            high = min(panels, -(-(end - start) // sizes.panel))
            if low < high:
                into = buffer.ctypes.data + base + start - first
                row = sizes.raw // sizes.n
                begin, last = low * PANEL * row, min(high * PANEL, sizes.n) * row
                rows = local.setdefault("rows", _Pages()).of(last - begin + _LINE)
                raw.read_into(e * sizes.raw + begin, rows[: last - begin])
                self._pack(rows.ctypes.data - begin, into, sizes.n, sizes.k, low, high)
            full = max(start + panels * sizes.panel, first)  # zeros from here to the next
            buffer[base + full - first : base + min(end, start + sizes.each) - first] = 0
        return buffer[base : base + end - first]


def _packers(
    constants: Sequence[Constant], target: build.Target, progress: Progress | None
) -> dict[str, _Packer]:
    names = sorted({c.type.dtype for c in constants if c.packer == "panels"})
    if not names:
        return {}
    library = Library(build.packer_library(names, target, progress))
    return {name: _Packer(library, name) for name in names}


def raw_size(constant: Constant) -> int:
    """Bytes of a constant's rows as a checkpoint stores them."""
    from lanewise.dtypes import DTYPES
    from lanewise.quant.format import FORMATS

    type = constant.type
    if type.dtype in DTYPES:
        return type.size * DTYPES[type.dtype].itemsize
    *lead, k = type.shape
    return math.prod(lead) * FORMATS[type.dtype].row_bytes(k)


def raw_bytes(value: Any) -> Bytes:
    """A source's answer as flat uint8: contiguous arrays and bytes are not copied."""
    if not isinstance(value, np.ndarray | bytes | bytearray | memoryview):
        value = value.data
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return np.frombuffer(memoryview(value).cast("B"), np.uint8)


def _check(constant: Constant, have: int, want: int) -> None:
    if have != want:
        raise _unfit(constant, f"the source gives {have} bytes, {want} are needed")


def _unfit(constant: Constant, what: str) -> RunError:
    return RunError(
        "run.constant", what, place=f"{constant.name} {constant.type}",
        remedy="this is a defect of lanewise: please report it",
    )  # fmt: skip


def _tell(progress: Progress | None, stage: str, done: int, total: int, detail: str) -> None:
    if progress is not None:
        progress(stage, done, total, detail)


def _bytes_in(arrays: Mapping[str, Bytes]) -> int:
    return sum(a.nbytes for a in arrays.values())


def _up(nbytes: int) -> int:
    return -(-nbytes // _LINE) * _LINE
