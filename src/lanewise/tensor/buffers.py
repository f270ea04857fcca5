"""What a caller hands over besides arrays: memory of the runtime's, and shared bindings.

Laws: a buffer's bytes are never copied on the way out; what a protocol cannot say is refused with
what can; a mapping of bindings does not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lanewise.closing import Closing
from lanewise.dtypes import extension
from lanewise.errors import RunError, UsageError, call_site
from lanewise.tensor.handles import short
from lanewise.tensor.interop import to_dlpack

Array = NDArray[Any]


class NotExported(RunError, BufferError):
    """What a buffer cannot give: consumers of the protocols catch a BufferError."""


class Buffer(Closing):
    """Memory of the runtime's, 64-aligned: `array` is its view; bindable by name."""

    _again = "pickle its `array`"

    def __init__(self, array: Array) -> None:
        self._array: Array | None = array

    @property
    def array(self) -> Array:
        """The NumPy view.  Raises RunError ``run.closed``."""
        if self._array is None:
            raise RunError("run.closed", "this buffer was closed", place=call_site(),
                           remedy="make a new one by `Runtime.buffer`")  # fmt: skip
        return self._array

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._array is None

    def __array__(self, kind: Any = None, copy: bool | None = None) -> Array:
        """The array itself; another dtype is a copy.  Raises RunError ``run.copy`` where that
        takes one and ``copy=False``."""
        if kind is None or np.dtype(kind) == self.array.dtype:
            return self.array.copy() if copy else self.array
        if copy is False:
            raise RunError(
                "run.copy",
                f"{np.dtype(kind)} of a buffer of {self.array.dtype} is a copy",
                place=call_site(),
                remedy="leave copy=False out",
            )
        return self.array.astype(kind)

    def __buffer__(self, flags: int) -> memoryview:
        """Its memory by the buffer protocol, which Python asks for since 3.12 (before, and after:
        ``memoryview(buffer.array)``).  Raises RunError ``run.buffer`` (a BufferError, too)
        for bf16 and 8-bit floats, which the protocol has no letter for."""
        array = self.array
        if extension(array.dtype):
            raise NotExported(
                "run.buffer", f"the buffer protocol has no {array.dtype}", place=call_site(),
                remedy=f"its bits: memoryview(buffer.array.view('uint{8 * array.itemsize}')); or "
                       "np.asarray(buffer)",
            )  # fmt: skip
        return memoryview(array)  # type: ignore[arg-type]

    def __dlpack__(self, **options: Any) -> Any:
        """A DLPack capsule of its memory, which lives until the consumer lets it go.

        ``options``: the array API's `stream`, `max_version`, `dl_device` and `copy`.  Raises
        RunError ``run.dlpack`` (a BufferError, too) for a stream, or a device that is not this
        processor.
        """
        try:
            return to_dlpack(self.array, **options)
        except (BufferError, RuntimeError) as error:
            raise NotExported(
                "run.dlpack", f"{self.array.dtype}: {error}", place=call_site(),
                remedy="ask for this processor's memory, and for no stream",
            ) from None  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def close(self) -> None:
        """Let the memory go; a closed buffer is refused when it is bound."""
        self._array = None


_NONE: Mapping[str, Any] = MappingProxyType({})


class Bindings(Mapping[str, Any]):
    """Buffers and numbers by name, as a mapping that does not change: what many submissions share.

    A plan looks at each array of it once, not at every submission (a step may have hundreds of
    weights): an array's shape, dtype and flags stay as they are.  ``weights =
    t.Bindings(weights)``, then ``plan.submit(weights, tokens=ids)``; keywords alone do as well:
    ``t.Bindings(w=w, g=g)``.  Raises UsageError ``usage.option`` for what is no mapping.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any] = _NONE, /, **more: Any) -> None:
        if not isinstance(values, Mapping):
            raise UsageError(
                "usage.option",
                f"bindings are {short(values)}",
                place=call_site(),
                remedy="a mapping of names, or keywords: t.Bindings(x=xs)",
            )
        self._values = {**values, **more}

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<Bindings {', '.join(map(str, self._values))}>"


def aligned(nbytes: int) -> NDArray[np.uint8]:
    """Zeroed bytes at a multiple of 64."""
    raw = np.zeros(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]
