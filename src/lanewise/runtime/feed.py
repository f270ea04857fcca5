"""Feed: runs of a form, each of which reads what the one before wrote, as one native call.

Between two runs of a small model Python finds its own code and data driven from the caches by the
weights, and takes several times as long as it would in a loop of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class LwFeed(ctypes.Structure):
    """The native struct of the same name."""

    _fields_ = (
        *((name, ctypes.c_void_p)
          for name in ("token", "position", "draw", "next", "draws", "ends", "out")),
        ("count", ctypes.c_int32),
        ("end_count", ctypes.c_int32),
    )  # fmt: skip


class Feed:
    """What one run hands to the next: element 0 of views that keep their place.

    ``token`` u32 takes what came out in ``next`` u32; ``position`` u32 goes up by one; ``draw``
    f32 is given for each run.  At most ``most`` runs go together; ``ends`` are values of `next`
    after which there is no other."""

    def __init__(
        self,
        token: NDArray[np.uint32],
        position: NDArray[np.uint32],
        draw: NDArray[np.float32],
        next: NDArray[np.uint32],
        most: int,
    ) -> None:
        self.token, self.position, self.draw, self.next = token, position, draw, next
        self.draws = np.zeros(most, np.float32)
        self.out = np.zeros(most, np.uint32)
        self._places: tuple[NDArray[Any], ...] = (token, position, draw, next, self.draws)
        self.set_ends(())

    def set_ends(self, ends: Sequence[int]) -> None:
        """Values of `next` that end it."""
        self.ends = np.array(ends, np.uint32)
        arrays = (*self._places, self.ends, self.out)
        self.native = LwFeed(*(a.ctypes.data for a in arrays), 0, len(ends))

    def begin(self, draws: Sequence[float]) -> int:
        """Where the native struct is, for so many runs as there are draws."""
        self.draws[: len(draws)] = draws
        self.native.count = len(draws)
        return ctypes.addressof(self.native)
