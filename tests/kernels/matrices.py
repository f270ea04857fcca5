"""Random matrices in GGUF's formats, taken apart by the ``gguf`` package's layouts; and in the
8-bit floats of ml_dtypes, which GGUF does not have."""

from __future__ import annotations

import gguf
import ml_dtypes
import numpy as np
import numpy.typing as npt

from lanewise.kernels.recipes import Weights

FORMATS = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k")
TYPES = {f: gguf.GGMLQuantizationType[f.upper()] for f in FORMATS}
SMALL = {"f8_e4m3": ml_dtypes.float8_e4m3fn, "f8_e5m2": ml_dtypes.float8_e5m2}
SCALES = {"q8_0": (0,), "q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2),
          "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,)}  # fmt: skip
"""Byte offsets of the f16 fields of a block."""


def raw_matrix(fmt: str, n: int, k: int, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Rows [n, bytes]: random codes of every value, f16 scales of sane size and either sign."""
    if fmt in SMALL:
        return rng.standard_normal((n, k)).astype(np.float32).astype(SMALL[fmt]).view(np.uint8)
    if fmt == "f32":
        return rng.standard_normal((n, k)).astype(np.float32).view(np.uint8).reshape(n, -1)
    if fmt == "f16":
        return rng.standard_normal((n, k)).astype(np.float16).view(np.uint8).reshape(n, -1)
    if fmt == "bf16":
        wide = rng.standard_normal((n, k)).astype(np.float32).view(np.uint32) >> 16
        return wide.astype(np.uint16).view(np.uint8).reshape(n, -1)
    per, size = gguf.GGML_QUANT_SIZES[TYPES[fmt]]
    blocks = rng.integers(0, 256, (n, k // per, size), dtype=np.uint8)
    for at in SCALES[fmt]:
        scale = (rng.standard_normal((n, k // per)) * 0.05).astype(np.float16)
        blocks[:, :, at : at + 2] = scale[:, :, None].view(np.uint8)
    return blocks.reshape(n, -1)


def decoded(fmt: str, raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """What the gguf package (ml_dtypes) makes of the rows."""
    if fmt in SMALL:
        return raw.view(SMALL[fmt]).astype(np.float32)
    if fmt in ("f32", "f16"):
        return raw.view(np.float32 if fmt == "f32" else np.float16).astype(np.float32)
    return gguf.dequantize(raw, TYPES[fmt]).astype(np.float32)


def taken_apart(fmt: str, raw: npt.NDArray[np.uint8]) -> Weights:
    """Codes, scales, minimums of the recipes, by gguf's decoder of doctored blocks.

    With scales of 1 and minimums of 0 the decoder gives the codes, and so on: written without
    any knowledge of bit positions but that of the f16 fields.
    """
    n = raw.shape[0]
    per, size = gguf.GGML_QUANT_SIZES[TYPES[fmt]]
    blocks = raw.reshape(n, -1, size)
    k = blocks.shape[1] * per
    one, zero = (np.array([v], np.float16).view(np.uint8) for v in (1, 0))
    fields = [blocks[:, :, a : a + 2].copy().view(np.float16)[..., 0].astype(np.float32)
              for a in SCALES[fmt]]  # fmt: skip

    def decode(change: dict[int, npt.NDArray[np.uint8]]) -> npt.NDArray[np.float32]:
        copy = blocks.copy()
        for at, value in change.items():
            copy[:, :, at : at + len(value)] = value
        return decoded(fmt, copy.reshape(n, -1)).reshape(n, k)

    with np.errstate(all="ignore"):
        if per == 32:
            codes = decode({SCALES[fmt][0]: one, **({2: zero} if len(fields) == 2 else {})})
            minimums = fields[1] if len(fields) == 2 else None
            return Weights(codes.astype(np.int32), fields[0], minimums)
        if fmt == "q6_k":
            codes = decode({208: one, 192: np.ones(16, np.uint8)})
            small = blocks[:, :, 192:208].view(np.int8).astype(np.float32)
            scales = (fields[0][:, :, None] * small).reshape(n, -1)
            return Weights(codes.astype(np.int32), scales, None)
        # With every code 1 (q5_k: high bits 0) the decoder gives d * sc; with 0, the minimums.
        qs = size - 128
        clear = {16: np.zeros(32, np.uint8)} if fmt == "q5_k" else {}
        ones = {**clear, qs: np.full(128, 0x11, np.uint8)}
        zeros = {**clear, qs: np.zeros(128, np.uint8)}
        sc = decode({0: one, 2: zero, **ones}).reshape(n, -1, 8, 32)[..., 0]
        m = -decode({0: one, 2: one, **zeros}).reshape(n, -1, 8, 32)[..., 0]
        flat = np.zeros(12, np.uint8)
        flat[:4] = flat[8:] = 1  # every 6-bit scale is 1
        codes = decode({0: one, 2: zero, 4: flat})
        return Weights(
            codes.astype(np.int32), (fields[0][:, :, None] * sc).reshape(n, -1),
            -(fields[1][:, :, None] * m).reshape(n, -1),
        )  # fmt: skip
