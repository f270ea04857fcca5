"""Digests of output bits: a change of one bit in a decoder or an activation recipe is seen.

``python -m tests.quant.test_digests`` (from the root, PYTHONPATH=src) writes the file anew: a
changed digest is a changed recipe, and needs a reason.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from lanewise.quant.activations import LIMITS, quantise
from lanewise.quant.format import FORMATS

FILE = Path(__file__).parents[1] / "digests" / "quant.json"
BLOCKS = 4096


def noise(name: str, nbytes: int) -> np.ndarray:
    """Bytes that no library's generator may change: SHAKE-128 of the name."""
    return np.frombuffer(hashlib.shake_128(name.encode()).digest(nbytes), np.uint8)


def digest(*arrays: np.ndarray) -> str:
    sha = hashlib.sha256()
    for array in arrays:
        if array.dtype == np.float32:  # a NaN is a NaN
            array = np.where(np.isnan(array), np.float32(np.nan), array)
        sha.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
    return sha.hexdigest()


def current() -> dict[str, str]:
    out = {}
    for fmt in FORMATS.values():
        if fmt.decode:
            raw = noise(fmt.name, BLOCKS * fmt.nbytes).reshape(8, -1)
            out[f"decode {fmt.name}"] = digest(fmt.decode(raw))
    # Finite floats of every magnitude, and then some groups that are not.
    bits = noise("activations", 1 << 18).view("<u4").reshape(-1, 256)
    x = bits.astype(np.uint32).view(np.float32)
    quiet = np.where(np.isfinite(x), x, np.float32(1)).astype(np.float32)
    small = np.ldexp(quiet.view(np.uint32) / np.float32(2**31) - np.float32(1), 3)
    for recipe in LIMITS:
        for name, rows in (("any", x), ("finite", quiet), ("even", small.astype(np.float32))):
            out[f"activations {recipe} {name}"] = digest(*quantise(rows, recipe))
    return out


def test_output_bits_are_those_committed():
    assert current() == json.loads(FILE.read_text())


if __name__ == "__main__":
    FILE.write_text(json.dumps(current(), indent=1) + "\n")
