"""One GGUF file, version 2 or 3, little endian: a memory-mapped parser of hostile bytes.

Laws:
- a count or a length is compared with the bytes that are left before anything is done with it, so
  time and memory are bounded by small limits (`LIMITS`) and by the file itself;
- values, arrays above all, are recorded by place and decoded when asked for;
- every refusal is a CheckpointError: missing, unreadable, magic, version, endian, truncated, count,
  type, nested, duplicate, utf8, shape, format, alignment, overlap, gap, empty, split, closed,
  tensor, key (each with the prefix ``checkpoint.``);
- names from the file are shown quoted (they may hold control characters).

Layout (gguf.md of ggml): magic, u32 version, u64 tensors, u64 pairs; pairs of (string key, u32
type, value); per tensor (string name, u32 axes, u64 lengths with the contiguous one first, u32
type, u64 offset); padding; data.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
import struct
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lanewise.checkpoint import strings
from lanewise.checkpoint.sidecar import fill
from lanewise.checkpoint.source import Entry, TensorInfo
from lanewise.errors import CheckpointError
from lanewise.quant.format import REMOVED, by_gguf_id
from lanewise.strings import Strings

# Beyond what any real file holds; within, a hostile one costs under a second.
LIMITS = {
    "pairs": 1 << 16,
    "tensors": 1 << 16,
    "key": 1 << 16,
    "name": 1 << 10,
    "strings": 1 << 21,  # of all arrays together
    "numbers": 1 << 26,
    "text": 1 << 26,
}
_SCALARS = {0: "u8", 1: "i8", 2: "u16", 3: "i16", 4: "u32", 5: "i32", 6: "f32", 7: "bool",
            10: "u64", 11: "i64", 12: "f64"}  # fmt: skip
_CODES = {"u8": "<B", "i8": "<b", "u16": "<H", "i16": "<h", "u32": "<I", "i32": "<i", "f32": "<f",
          "bool": "<B", "u64": "<Q", "i64": "<q", "f64": "<d"}  # fmt: skip
_STRUCTS = {kind: struct.Struct(code) for kind, code in _CODES.items()}
_STRING, _ARRAY = 8, 9
_AGAIN = "the file is damaged: fetch or convert it again"


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor's bytes where they are in the file: read, not mapped, by any threads at once."""

    file: GgufFile
    info: TensorInfo

    @property
    def nbytes(self) -> int:
        return self.info.nbytes

    def read_into(self, at: int, out: NDArray[np.uint8]) -> None:
        """Bytes from ``at`` on, as many as ``out`` has; raises as `GgufFile.read`."""
        what = f"tensor {self.info.name!r}"
        self.file.read_into(self.info.offset + at, out.data, what)


class GgufFile:
    """One mapped file, parsed: ``entries``, ``tensors`` (offsets absolute), ``data_at`` (the start
    of the data), ``size``, ``changed`` (time of last change, ns), ``bytes`` (all of it, mapped)."""

    def __init__(self, path: Path, number: int) -> None:
        self.path = path
        self.number = number
        self.entries: dict[str, Entry] = {}
        self.tensors: dict[str, TensorInfo] = {}
        fd, self._map, self.size, self.changed = _mapped(path)
        self._fd = fd
        self._lock = threading.Lock()  # a closed file's number may be another's
        self._close = weakref.finalize(self, os.close, fd)
        self.bytes: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self._view = memoryview(self._map)
        self._at = 0
        self._strings = 0
        self.closed = False
        try:
            self._header()
        except BaseException:
            self.close()
            raise

    def refuse(self, code: str, what: str, remedy: str = _AGAIN) -> CheckpointError:
        return CheckpointError(f"checkpoint.{code}", what, place=str(self.path), remedy=remedy)

    # --- primitives: each checks what is left before it moves on ---

    def _take(self, nbytes: int, what: str) -> int:
        at = self._at
        if nbytes > self.size - at:
            raise self.refuse(
                "truncated", f"the file ends at byte {self.size}, inside {what} at byte {at}",
                "the file is cut short: fetch it again",
            )  # fmt: skip
        self._at = at + nbytes
        return at

    def _number(self, kind: str, what: str) -> Any:
        reader = _STRUCTS[kind]
        return reader.unpack_from(self._view, self._take(reader.size, what))[0]

    def _string(self, limit: int, what: str) -> str:
        length = self._number("u64", what)
        if length > limit:
            raise self.refuse("count", f"{what} is {length} bytes long, over {limit}")
        return self._text(self._take(length, what), length, what)

    def check_open(self) -> None:
        """Raises ``checkpoint.closed``."""
        if self.closed:
            raise self.refuse("closed", "the checkpoint was closed", "keep it open while in use")

    def read(self, at: int, nbytes: int, what: str) -> bytearray:
        """Bytes of the file, copied.  Once the header was parsed, all but tensors is read so: a
        page of a map that the file does not reach any more would end the process.

        Raises ``checkpoint.closed``, ``checkpoint.truncated``, ``checkpoint.unreadable``."""
        out = bytearray(nbytes)
        with self._lock:
            self.check_open()
            self.read_into(at, memoryview(out), what)
        return out

    def read_into(self, at: int, out: memoryview, what: str) -> None:
        """As `read`, of a file that nobody closes meanwhile; any threads at once."""
        try:
            fill(self._fd, out, at)
        except OSError as error:
            cut = os.fstat(self._fd).st_size < at + len(out)
            raise self.refuse(
                "truncated" if cut else "unreadable",
                f"{what} cannot be read: {error.strerror}",
                "replace a model's file by renaming another, and open it again",
            ) from None

    def _text(self, at: int, length: int, what: str) -> str:
        try:
            return self.read(at, length, what).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.refuse("utf8", f"{what} is not UTF-8: {error.reason}") from None

    def _fits(self, count: int, least: int, most: int, what: str) -> int:
        """The count, if so many things of at least ``least`` bytes each can follow."""
        if count > most:
            raise self.refuse("count", f"{count} {what}: no file has over {most}")
        if count * least > self.size - self._at:
            raise self.refuse(
                "truncated", f"{count} {what} do not fit: the file ends at byte {self.size}",
                "the file is cut short: fetch it again",
            )  # fmt: skip
        return count

    def _count(self, what: str, least: int) -> int:
        count = self._number("u64", f"the count of {what}")
        return self._fits(count, least, LIMITS[what], what)

    # --- the parts, in file order ---

    def _header(self) -> None:
        magic = self._view[: min(4, self.size)].tobytes()
        if magic != b"GGUF":
            if self.size < 4 and b"GGUF".startswith(magic):
                self._take(4, "the magic")
            raise self.refuse(
                "magic", f"not a GGUF file: it begins with {magic!r}", "give the path of a .gguf"
            )
        self._at = 4
        version = self._number("u32", "the version")
        if version not in (2, 3):
            if version and version & 0xFFFF == 0:
                raise self.refuse("endian", "a big-endian GGUF file", "convert it little-endian")
            raise self.refuse(
                "version", f"GGUF version {version}; versions 2 and 3 are read",
                "convert the model again with a current converter",
            )  # fmt: skip
        tensors = self._count("tensors", 8 + 4 + 8 + 4 + 8)
        pairs = self._count("pairs", 8 + 4 + 1)
        for _ in range(pairs):
            self._pair()
        alignment = self._alignment()
        table = [self._tensor() for _ in range(tensors)]
        self.data_at = -(-self._at // alignment) * alignment
        self._place(table, alignment)
        self.let_go()

    def let_go(self) -> None:
        """Stop counting as ours the pages of the file that were looked at; they can be read
        again, from where the system keeps them."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def _pair(self) -> None:
        key = self._string(LIMITS["key"], "a metadata key")
        if key in self.entries:
            raise self.refuse("duplicate", f"metadata key {key!r} twice")
        self.entries[key] = self._value(self._number("u32", f"the type of {key!r}"), key)

    def _value(self, kind: int, key: str) -> Entry:
        what = f"the value of {key!r}"
        if kind == _STRING:
            length = self._number("u64", what)
            if length > LIMITS["text"]:
                raise self.refuse("count", f"{what} is {length} bytes long")
            at = self._take(length, what)
            return Entry("string", None, lambda: self._text(at, length, what))
        if kind == _ARRAY:
            return self._array(key, what)
        name = _SCALARS.get(kind)
        if name is None:
            raise self.refuse("type", f"{what} has type {kind}, which does not exist")
        value = self._number(name, what)
        if name == "bool":
            if value > 1:
                raise self.refuse("type", f"{what} is a bool of {value}")
            value = bool(value)
        return Entry(name, None, lambda: value)

    def _array(self, key: str, what: str) -> Entry:
        kind = self._number("u32", what)
        count = self._number("u64", what)
        if kind == _ARRAY:
            raise self.refuse("nested", f"{what} is an array of arrays, which no model uses")
        if kind == _STRING:
            return self._string_array(count, what)
        name = _SCALARS.get(kind)
        if name is None:
            raise self.refuse("type", f"{what} is an array of type {kind}, which does not exist")
        width = _STRUCTS[name].size
        self._fits(count, width, LIMITS["numbers"], f"elements in {what}")
        at = self._take(count * width, what)
        return Entry(name, count, lambda: self._numbers(at, count, name, what))

    def _numbers(self, at: int, count: int, kind: str, what: str) -> NDArray[Any]:
        found = np.frombuffer(self.read(at, count * _STRUCTS[kind].size, what), _CODES[kind])
        if kind != "bool":
            return found
        if found.max(initial=0) > 1:
            raise self.refuse("type", f"{what} has a bool of {found.max()}")
        return found.astype(np.bool_)

    def _string_array(self, count: int, what: str) -> Entry:
        self._fits(count, 8, LIMITS["strings"] - self._strings, f"strings in {what}")
        self._strings += count
        try:
            positions = strings.starts(self.bytes, self._at, count)
        except strings.Cut as cut:
            raise self.refuse(
                "truncated", f"string {cut.index} of {what} runs past the end of the file",
                "the file is cut short: fetch it again",
            ) from None  # fmt: skip
        at, self._at = self._at, int(positions[-1])
        lengths = np.diff(positions) - 8
        lengths = lengths.astype(np.min_scalar_type(lengths.max(initial=0)))
        return Entry("string", count, lambda: self._texts(at, lengths, what))

    def _texts(self, at: int, lengths: NDArray[Any], what: str) -> Strings:
        positions = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths + np.int64(8), out=positions[1:])
        data = np.frombuffer(self.read(at, int(positions[-1]), what), np.uint8)
        try:
            return strings.decode(data, positions)
        except UnicodeDecodeError as error:
            raise self.refuse("utf8", f"{what} is not UTF-8: {error.reason}") from None

    def _alignment(self) -> int:
        key = "general.alignment"
        entry = self.entries.get(key)
        if entry is None:
            return 32
        if entry.kind != "u32" or entry.length is not None:
            raise self.refuse("type", f"metadata key {key!r} is {entry}, not u32")
        alignment = entry.load()
        if alignment == 0 or alignment & (alignment - 1):
            raise self.refuse("alignment", f"an alignment of {alignment} is not a power of two")
        return alignment

    def _tensor(self) -> TensorInfo:
        """A row of the table, its offset still relative to the data."""
        name = self._string(LIMITS["name"], "a tensor name")
        what = f"tensor {name!r}"
        axes = self._number("u32", what)
        if not 1 <= axes <= 4:
            raise self.refuse("shape", f"{what} has {axes} axes; 1 to 4 are possible")
        shape = tuple(self._number("u64", what) for _ in range(axes))[::-1]
        number = self._number("u32", what)
        offset = self._number("u64", what)
        if min(shape) == 0:
            raise self.refuse("shape", f"{what} has shape {shape}: an axis without elements")
        fmt = by_gguf_id(number)
        if fmt is None and number in REMOVED:
            raise self.refuse(
                "format", f"{what} is stored as {REMOVED[number]}, which GGUF has removed",
                "convert the model again with a current converter",
            )  # fmt: skip
        if fmt is None:
            raise self.refuse(
                "type", f"{what} has type {number}, which is not known",
                "the file is damaged, or newer than this release",
            )  # fmt: skip
        if shape[-1] % fmt.block:
            raise self.refuse(
                "shape",
                f"{what}: rows of {shape[-1]} are not whole {fmt.name} blocks of {fmt.block}",
            )
        elements = 1
        for length in shape:
            elements *= length
        nbytes = elements // fmt.block * fmt.nbytes
        return TensorInfo(name, fmt.name, shape, offset, nbytes, self.number)

    def _place(self, table: list[TensorInfo], alignment: int) -> None:
        """Make offsets absolute; each tensor aligned, inside the file, and apart from the rest."""
        for info in table:
            what = f"tensor {info.name!r}"
            if info.name in self.tensors:
                raise self.refuse("duplicate", f"{what} twice")
            if info.offset % alignment:
                raise self.refuse(
                    "alignment", f"{what} begins at {info.offset}, not a multiple of {alignment}"
                )
            at = self.data_at + info.offset
            if at + info.nbytes > self.size:
                raise self.refuse(
                    "truncated", f"{what} ends at byte {at + info.nbytes}, the file at {self.size}",
                    "the file is cut short: fetch it again",
                )  # fmt: skip
            self.tensors[info.name] = TensorInfo(
                info.name, info.format, info.shape, at, info.nbytes, info.file
            )
        end, before = self.data_at, "(the table)"
        for info in sorted(self.tensors.values(), key=lambda info: info.offset):
            if info.offset < end:
                raise self.refuse("overlap", f"tensors {before!r} and {info.name!r} overlap")
            # All writers put tensors side by side: a gap means that a size in the table is wrong.
            if info.offset - end >= alignment:
                raise self.refuse(
                    "gap", f"{info.offset - end} bytes between {before!r} and {info.name!r}"
                    " belong to no tensor",
                )  # fmt: skip
            end, before = info.offset + info.nbytes, info.name

    def close(self) -> None:
        """Unmap, or leave that to the last array that was given out."""
        with self._lock:
            self.closed = True
            self._close()
        self._view.release()
        self.bytes = np.empty(0, np.uint8)
        with contextlib.suppress(BufferError):
            self._map.close()


def _mapped(path: Path) -> tuple[int, mmap.mmap, int, int]:
    """The open file, its map, size, and time of last change in ns."""

    def refuse(code: str, what: str, remedy: str) -> CheckpointError:
        return CheckpointError(f"checkpoint.{code}", what, place=str(path), remedy=remedy)

    try:
        # Not blocking: a named pipe without a writer would hang.
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        raise refuse("missing", "no such file", "check the path") from None
    except (OSError, ValueError) as error:
        raise refuse("unreadable", f"cannot be opened: {error}", "check its permissions") from None
    mapped = None
    try:
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode):
            raise refuse("unreadable", "not a regular file", "give the path of a .gguf file")
        if state.st_size == 0:
            raise refuse("truncated", "the file is empty", "fetch it again")
        mapped = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        return fd, mapped, state.st_size, state.st_mtime_ns
    except OSError as error:
        raise refuse(
            "unreadable", f"cannot be mapped: {error}", "copy it to a local disk"
        ) from None
    finally:
        if mapped is None:
            os.close(fd)
