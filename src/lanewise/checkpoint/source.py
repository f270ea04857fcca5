"""What every checkpoint reader gives: metadata, a table of tensors, and their bytes.

Laws: opening reads the header and nothing else; a tensor's bytes are the file's own, mapped and
read-only; shapes are row-major (NumPy order: rows first, the contiguous axis last); whatever is
wrong with a file is a CheckpointError with a code of its own.  A file must not be truncated while
it is opened, nor under a mapped tensor (`raw`): the operating system would end the process
(replace files by rename).  All that a lane reads afterwards is read, not mapped: it is refused.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from lanewise.errors import CheckpointError
from lanewise.quant.format import FORMATS
from lanewise.strings import Strings

_T = TypeVar("_T")
_REQUIRED: Any = object()
_INTEGERS = frozenset({"u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64"})
_FLOATS = frozenset({"f32", "f64"})


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: ``format`` is a name of `lanewise.quant.format.FORMATS`, ``offset`` counts from
    the start of file number ``file``, both offset and ``nbytes`` in bytes."""

    name: str
    format: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    file: int = 0

    @property
    def elements(self) -> int:
        """The product of the shape."""
        count = 1
        for length in self.shape:
            count *= length
        return count


@dataclass(frozen=True, slots=True)
class Entry:
    """One metadata value, not read yet: ``kind`` is a scalar type, ``string`` or ``bool``;
    ``length`` is None for a scalar, else the number of elements of an array."""

    kind: str
    length: int | None
    load: Callable[[], Any]

    def __str__(self) -> str:
        return self.kind if self.length is None else f"{self.kind}[{self.length}]"


class Metadata(Mapping[str, Any]):
    """Key -> value; values are decoded on access and arrays are not kept.

    Values are int, float, bool, str, `Strings` (a sequence of str), or a NumPy array.  The
    accessors check types: CheckpointError ``checkpoint.key`` if a key without a default is
    missing, ``checkpoint.type`` if its value has another type or range, ``checkpoint.utf8`` if
    text is not UTF-8.
    """

    def __init__(self, entries: Mapping[str, Entry], place: str) -> None:
        self._entries = entries
        self._place = place

    def __getitem__(self, key: str) -> Any:
        return self._entries[key].load()

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> builtins.bool:
        return key in self._entries

    def entry(self, key: str) -> Entry:
        """Type and length of a value, without reading it; raises ``checkpoint.key``."""
        found = self._entries.get(key)
        if found is None:
            raise CheckpointError(
                "checkpoint.key", f"no metadata key {key!r}", place=self._place,
                remedy="the file was converted for another program or by an old one: convert again",
            )  # fmt: skip
        return found

    def _wrong(self, key: str, wanted: str, got: object) -> CheckpointError:
        return CheckpointError(
            "checkpoint.type", f"metadata key {key!r} is {got}, not {wanted}", place=self._place,
            remedy="the file is damaged or was converted wrongly: fetch or convert it again",
        )  # fmt: skip

    def _scalar(self, key: str, default: Any, kinds: frozenset[str], wanted: str) -> Any:
        if default is not _REQUIRED and key not in self._entries:
            return default
        entry = self.entry(key)
        if entry.length is not None or entry.kind not in kinds:
            raise self._wrong(key, wanted, entry)
        return entry.load()

    def u32(self, key: str, default: _T = _REQUIRED) -> int | _T:
        """An integer of any stored width that lies in 0 .. 2^32 - 1."""
        value = self._scalar(key, default, _INTEGERS, "an integer")
        if key in self._entries and not 0 <= value < 1 << 32:
            raise self._wrong(key, "in 0 .. 2^32 - 1", value)
        return value

    def f32(self, key: str, default: _T = _REQUIRED) -> float | _T:
        """A finite float, f32 or f64."""
        value = self._scalar(key, default, _FLOATS, "a float")
        if key in self._entries and not np.isfinite(value):
            raise self._wrong(key, "finite", value)
        return value

    def string(self, key: str, default: _T = _REQUIRED) -> str | _T:
        """Text."""
        return self._scalar(key, default, frozenset({"string"}), "a string")

    def bool(self, key: str, default: _T = _REQUIRED) -> builtins.bool | _T:
        """A truth value."""
        return self._scalar(key, default, frozenset({"bool"}), "a bool")

    def _array(self, key: str, default: Any, kinds: frozenset[str], wanted: str) -> Any:
        if default is not _REQUIRED and key not in self._entries:
            return default
        entry = self.entry(key)
        if entry.length is None or entry.kind not in kinds:
            raise self._wrong(key, wanted, entry)
        return entry.load()

    def strings(self, key: str, default: _T = _REQUIRED) -> Strings | _T:
        """An array of text."""
        return self._array(key, default, frozenset({"string"}), "an array of strings")

    def integers(self, key: str, default: _T = _REQUIRED) -> NDArray[Any] | _T:
        """An array of integers, with the stored dtype."""
        return self._array(key, default, _INTEGERS, "an array of integers")

    def floats(self, key: str, default: _T = _REQUIRED) -> NDArray[Any] | _T:
        """An array of floats, f32 or f64 as stored; NaNs pass."""
        return self._array(key, default, _FLOATS, "an array of floats")

    def bools(self, key: str, default: _T = _REQUIRED) -> NDArray[np.bool_] | _T:
        """An array of truth values."""
        return self._array(key, default, frozenset({"bool"}), "an array of bools")


class Checkpoint(Protocol):
    """An open checkpoint; a context manager.  After ``close`` only arrays given out stay valid."""

    @property
    def path(self) -> Path:
        """The file (the first of several) or folder."""
        ...

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        ...

    @property
    def metadata(self) -> Metadata:
        """Its key-value pairs."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Its tensors by name, in file order."""
        ...

    @property
    def digest(self) -> str:
        """64 hex digits that change when the file does: of the header, the sizes, the times of
        last change and samples of the weights (reading them all would cost seconds)."""
        ...

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The tensor's bytes, uint8 [nbytes], read-only, mapped; raises ``checkpoint.tensor``."""
        ...

    def close(self) -> None:
        """Let go of the file; twice is fine."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def tensor(checkpoint: Checkpoint, name: str) -> TensorInfo:
    """The tensor of that name.

    Raises CheckpointError ``checkpoint.tensor`` if there is none.
    """
    info = checkpoint.tensors.get(name)
    if info is None:
        raise CheckpointError(
            "checkpoint.tensor", f"no tensor {name!r}", place=str(checkpoint.path),
            remedy="the file holds another model or only a part of one",
        )  # fmt: skip
    return info


def rows(checkpoint: Checkpoint, name: str) -> NDArray[np.uint8]:
    """The tensor's bytes as uint8 [rows, bytes of a row] (a vector is one row), mapped."""
    info = tensor(checkpoint, name)
    return checkpoint.raw(name).reshape(info.elements // info.shape[-1], -1)


def values(checkpoint: Checkpoint, name: str) -> NDArray[np.float32]:
    """The tensor decoded to float32, in its own shape.

    Raises CheckpointError ``checkpoint.format`` for a format that we know by name only.
    """
    info = tensor(checkpoint, name)
    decode = FORMATS[info.format].decode
    if decode is None:
        raise unsupported(checkpoint, info)
    return decode(rows(checkpoint, name)).reshape(info.shape)


def unsupported(checkpoint: Checkpoint, info: TensorInfo) -> CheckpointError:
    """The refusal of a tensor whose format we do not decode."""
    return CheckpointError(
        "checkpoint.format", f"tensor {info.name!r} is stored as {info.format}, which is not run",
        place=str(checkpoint.path), remedy="use a file quantised to q4_k, q4_1, q8_0 or f16",
    )  # fmt: skip
