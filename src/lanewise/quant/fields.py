"""Reading the fields of packed blocks: shared by every decoder.

Blocks are ``uint8 [n, nbytes]``, one row a block, fields at fixed byte positions, little endian.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

NIBBLES = np.array([0, 4], np.uint8)
PAIRS = np.array([0, 2, 4, 6], np.uint8)
BITS = np.arange(8, dtype=np.uint8)


def half(blocks: Bytes, at: int) -> Floats:
    """The f16 field at byte ``at`` of each block, widened exactly: [n, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def planes(packed: Bytes, shifts: NDArray[np.uint8], run: int) -> NDArray[np.uint8]:
    """Bit planes of packed bytes, as GGUF orders them: [n, b] -> [n, b * len(shifts)].

    Each run of ``run`` bytes holds ``len(shifts)`` runs of elements: first all the lowest fields,
    then all the next ones, and so on.  Fields are as wide as the shifts are apart.
    """
    n = packed.shape[0]
    mask = np.uint8((1 << (8 // len(shifts))) - 1)
    out = (packed.reshape(n, -1, 1, run) >> shifts[:, None]) & mask
    return out.reshape(n, -1)


def signed(codes: NDArray[np.uint8], offset: int) -> Floats:
    """codes - offset as f32 (codes < 64: nothing wraps)."""
    return (codes.view(np.int8) - np.int8(offset)).astype(np.float32)
