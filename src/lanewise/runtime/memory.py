"""Large memory: 2 MiB-aligned, in huge pages where the system gives them, checked beforehand.

Laws: what does not fit into what the machine and the cgroups have left is refused before anything
is touched, with the numbers; memory starts as zeros; it is given back when the block is closed
and the last view of it is gone, never under a view.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lanewise.errors import RunError
from lanewise.runtime.cpus import cgroup_folders

HUGE = 2 << 20
MEMINFO = Path("/proc/meminfo")
# Left alone, so that what we start after the check (Python objects, threads) still fits.
_RESERVE = 32 << 20
_UNLIMITED = 1 << 60


class Block:
    """``nbytes`` of private zeroed memory at ``address`` (a multiple of 2 MiB).

    ``huge`` asks for 2 MiB pages: faster for what is used whole; what is touched here and there
    would be backed whole.  Raises RunError ``run.memory`` if that much is not to be had; ``what``
    names it.
    """

    def __init__(
        self, nbytes: int, what: str = "memory", *, check: bool = True, huge: bool = True
    ) -> None:
        if check:
            require(nbytes, what)
        self.nbytes = nbytes
        try:
            # Anonymous; private, so that a child process has its own after a fork.
            self._map = mmap.mmap(
                -1, max(nbytes, 1) + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            )
        except (OSError, ValueError, OverflowError) as e:
            raise _refusal(nbytes, what, str(e)) from e
        raw = np.frombuffer(self._map, np.uint8)
        # Only what is used is ever backed by pages: the slack for alignment costs none.
        start = -raw.ctypes.data % HUGE
        self._bytes: NDArray[np.uint8] | None = raw[start : start + nbytes]
        self.address = raw.ctypes.data + start
        if huge and nbytes >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            length = (nbytes + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE
            # A kernel without them: slower, nothing else.
            with contextlib.suppress(OSError):
                self._map.madvise(mmap.MADV_HUGEPAGE, start, length)

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """All of it, as uint8.  Raises RunError ``run.closed``."""
        if self._bytes is None:
            raise RunError("run.closed", "this memory was given back", remedy="make a new session")
        return self._bytes

    def view(self, dtype: Any, shape: tuple[int, ...], offset: int = 0) -> NDArray[Any]:
        """A window of it as an array; ``offset`` in bytes.  Raises RunError ``run.closed``."""
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        return self.bytes[offset : offset + size].view(dtype).reshape(shape)

    def close(self) -> None:
        """Give the memory back, now or when its last view goes."""
        self._bytes = None
        # While views are left it cannot be; the collector does it after the last.
        with contextlib.suppress(BufferError):
            self._map.close()


def available() -> int:
    """Bytes that can be had now: the machine's, or what the memory cgroups leave of theirs."""
    return max(0, min([_machine(), *_cgroups()]))


def require(nbytes: int, what: str) -> None:
    """Raise RunError ``run.memory`` unless ``nbytes`` can be had and a little is left."""
    have = available()
    if nbytes + (_RESERVE if nbytes > _RESERVE else 0) > have:
        raise _refusal(nbytes, what, f"{mib(have)} are available")


def trim() -> None:
    """Give back to the system what the C library keeps of freed memory, where it can be told to:
    what was built in many steps (a tokenizer, a plan) leaves some megabytes behind."""
    with contextlib.suppress(OSError, AttributeError, TypeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def mib(nbytes: int) -> str:
    """A size for people."""
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.1f} MiB"


def _refusal(nbytes: int, what: str, why: str) -> RunError:
    return RunError(
        "run.memory", f"no room for {what}: {mib(nbytes)} needed, {why}",
        remedy="close other programs, ask for a shorter context, or take a smaller model",
    )  # fmt: skip


def _machine() -> int:
    for line in _read(MEMINFO).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return _UNLIMITED


def _cgroups() -> list[int]:
    left = []
    for folder in cgroup_folders("memory"):
        limit = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
        used = _number(folder / "memory.current", folder / "memory.usage_in_bytes")
        if limit is None or used is None or limit >= _UNLIMITED:
            continue
        # Cached file pages count as used and are dropped when memory is short.
        left.append(limit - used + _file_pages(folder))
    return left


def _file_pages(folder: Path) -> int:
    total = 0
    for line in _read(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        # v1 names whole trees "total_..."; v2's plain names already are.
        if name in ("inactive_file", "active_file") and value.isdigit():
            total += int(value)
    return total


def _number(*paths: Path) -> int | None:
    for path in paths:
        text = _read(path).strip()
        if text.isdigit():
            return int(text)
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
