"""How a tensor's elements are stored: one row per GGUF tensor type.

Laws: a row of K elements is K / block blocks of ``nbytes`` bytes; blocks never cross rows.
``decode`` is bit-exact (oracle: the ``gguf`` package); a row without it is known by name and
size only, so that a reader can say what it met.  Adding a format: write its block decoder,
add its row, and the suite compares it with the oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lanewise.errors import UsageError
from lanewise.quant import codebooks, floats, kquants, legacy, ternary

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# Elements decoded or encoded at a time: temporaries stay in the cache.
_CHUNK = 1 << 17


@dataclass(frozen=True, slots=True)
class Format:
    """One storage format.

    ``block`` elements take ``nbytes`` bytes; ``sub_block`` elements share a scale (0: no scale);
    ``has_min``: an element is scale * code + min.
    ``decode``: uint8 [n, K / block * nbytes] -> float32 [n, K]; ``encode``: the way back.
    ``gguf_id`` is GGUF's number of the type.
    """

    name: str
    gguf_id: int
    block: int
    nbytes: int
    sub_block: int
    has_min: bool
    decode: Callable[[Bytes], Floats] | None
    encode: Callable[[Floats], Bytes] | None
    doc: str

    @property
    def quantised(self) -> bool:
        """True for a format with scales."""
        return self.sub_block > 0

    @property
    def bits(self) -> float:
        """Bits an element takes on average."""
        return 8 * self.nbytes / self.block

    def row_bytes(self, k: int) -> int:
        """Bytes of a row of k elements.

        Raises UsageError ``usage.format_shape`` if k is not a positive multiple of ``block``.
        """
        if k <= 0 or k % self.block:
            raise UsageError(
                "usage.format_shape", f"a row of {k} elements is not whole blocks of {self.block}",
                place=self.name, remedy="pad or store the tensor in an unblocked format (f16)",
            )  # fmt: skip
        return k // self.block * self.nbytes

    def __str__(self) -> str:
        return self.name


def _bad_rows(name: str, what: str) -> UsageError:
    return UsageError("usage.format_shape", what, place=name, remedy="pass whole rows of blocks")


def _decoder(
    name: str, block: int, nbytes: int, blocks: Callable[[Bytes], Floats]
) -> Callable[[Bytes], Floats]:
    """Lift a decoder of blocks [n, nbytes] -> [n, block] to rows."""

    def decode(raw: Bytes) -> Floats:
        if raw.dtype != np.uint8 or raw.ndim != 2 or raw.shape[1] % nbytes:
            raise _bad_rows(name, f"rows of {raw.dtype} {raw.shape}, not of {nbytes}-byte blocks")
        per_row = raw.shape[1] // nbytes
        flat = np.ascontiguousarray(raw).reshape(-1, nbytes)
        out = np.empty((flat.shape[0], block), np.float32)
        step = max(1, _CHUNK // block)
        # 0 * infinity is NaN, and mxfp4's largest scales overflow: the format's meaning, no mishap.
        with np.errstate(invalid="ignore", over="ignore"):
            for at in range(0, flat.shape[0], step):
                out[at : at + step] = blocks(flat[at : at + step])
        return out.reshape(raw.shape[0], per_row * block)

    return decode


def _encoder(
    name: str, block: int, nbytes: int, finite: bool, blocks: Callable[[Floats], Bytes]
) -> Callable[[Floats], Bytes]:
    """Lift an encoder of blocks [n, block] -> [n, nbytes] to rows; ``finite``: refuse the rest."""

    def encode(values: Floats) -> Bytes:
        if values.dtype != np.float32 or values.ndim != 2 or values.shape[1] % block:
            raise _bad_rows(
                name, f"rows of {values.dtype} {values.shape}, not of {block} f32 elements"
            )
        per_row = values.shape[1] // block
        flat = np.ascontiguousarray(values).reshape(-1, block)
        out = np.empty((flat.shape[0], nbytes), np.uint8)
        step = max(1, _CHUNK // block)
        for at in range(0, flat.shape[0], step):
            piece = flat[at : at + step]
            if finite and not np.isfinite(piece).all():
                raise UsageError(
                    "usage.quantise_nonfinite", "a NaN or an infinity has no code",
                    place=name, remedy="find where the tensor got it, or store it as f32",
                )  # fmt: skip
            out[at : at + step] = blocks(piece)
        return out.reshape(values.shape[0], per_row * nbytes)

    return encode


def _float(
    name: str,
    gguf_id: int,
    nbytes: int,
    decode: Callable[[Bytes], Floats],
    encode: Callable[[Floats], Bytes],
    doc: str,
) -> Format:
    return Format(
        name, gguf_id, 1, nbytes, 0, False,
        _decoder(name, 1, nbytes, decode), _encoder(name, 1, nbytes, False, encode), doc,
    )  # fmt: skip


def _quant(
    name: str,
    gguf_id: int,
    sizes: tuple[int, int, int],
    decode: Callable[[Bytes], Floats],
    doc: str,
    *,
    has_min: bool = False,
    encode: Callable[[Floats], Bytes] | None = None,
) -> Format:
    block, nbytes, sub_block = sizes
    return Format(
        name, gguf_id, block, nbytes, sub_block, has_min,
        _decoder(name, block, nbytes, decode),
        None if encode is None else _encoder(name, block, nbytes, True, encode), doc,
    )  # fmt: skip


def _known(name: str, gguf_id: int, block: int, nbytes: int, sub_block: int, doc: str) -> Format:
    """A type that we can name and measure, not decode."""
    return Format(name, gguf_id, block, nbytes, sub_block, False, None, None, doc)


_ROWS = (
    _float("f32", 0, 4, floats.decode_f32, floats.encode_f32, "binary32"),
    _float("f16", 1, 2, floats.decode_f16, floats.encode_f16, "binary16"),
    _float("bf16", 30, 2, floats.decode_bf16, floats.encode_bf16, "upper half of binary32"),
    _quant("q4_0", 2, (32, 18, 32), legacy.decode_q4_0, "f16 scale, 4-bit codes - 8",
           encode=legacy.encode_q4_0),
    _quant("q4_1", 3, (32, 20, 32), legacy.decode_q4_1, "f16 scale and min, 4-bit codes",
           has_min=True, encode=legacy.encode_q4_1),
    _quant("q5_0", 6, (32, 22, 32), legacy.decode_q5_0, "f16 scale, 5-bit codes - 16",
           encode=legacy.encode_q5_0),
    _quant("q5_1", 7, (32, 24, 32), legacy.decode_q5_1, "f16 scale and min, 5-bit codes",
           has_min=True, encode=legacy.encode_q5_1),
    _quant("q8_0", 8, (32, 34, 32), legacy.decode_q8_0, "f16 scale, int8 codes",
           encode=legacy.encode_q8_0),
    _quant("q2_k", 10, (256, 84, 16), kquants.decode_q2_k, "4-bit scales and mins, 2-bit codes",
           has_min=True),
    _quant("q3_k", 11, (256, 110, 16), kquants.decode_q3_k, "6-bit scales, 3-bit codes - 4"),
    _quant("q4_k", 12, (256, 144, 32), kquants.decode_q4_k, "6-bit scales and mins, 4-bit codes",
           has_min=True),
    _quant("q5_k", 13, (256, 176, 32), kquants.decode_q5_k, "6-bit scales and mins, 5-bit codes",
           has_min=True),
    _quant("q6_k", 14, (256, 210, 16), kquants.decode_q6_k, "int8 scales, 6-bit codes - 32"),
    _quant("iq4_nl", 20, (32, 18, 32), codebooks.decode_iq4_nl, "f16 scale, 4-bit level"),
    _quant("iq4_xs", 23, (256, 136, 32), codebooks.decode_iq4_xs, "6-bit scales, 4-bit level"),
    _quant("tq1_0", 34, (256, 54, 256), ternary.decode_tq1_0, "f16 scale, trits, five a byte"),
    _quant("tq2_0", 35, (256, 66, 256), ternary.decode_tq2_0, "f16 scale, trits, four a byte"),
    _quant("mxfp4", 39, (32, 17, 32), codebooks.decode_mxfp4, "E8M0 scale, E2M1 codes"),
    _quant("nvfp4", 40, (64, 36, 16), codebooks.decode_nvfp4, "E4M3 scales, E2M1 codes"),
    # ggml's block: two f16 and 32 codes (the gguf package still counts two f32).
    _known("q8_1", 9, 32, 36, 32, "activations of other engines, with sums"),
    _known("q8_k", 15, 256, 292, 256, "activations of other engines, f32 scale"),
    _known("iq2_xxs", 16, 256, 66, 32, "lattice codes, 2.06 bits"),
    _known("iq2_xs", 17, 256, 74, 16, "lattice codes, 2.31 bits"),
    _known("iq3_xxs", 18, 256, 98, 32, "lattice codes, 3.06 bits"),
    _known("iq1_s", 19, 256, 50, 32, "lattice codes, 1.56 bits"),
    _known("iq3_s", 21, 256, 110, 32, "lattice codes, 3.44 bits"),
    _known("iq2_s", 22, 256, 82, 16, "lattice codes, 2.56 bits"),
    _known("iq1_m", 29, 256, 56, 16, "lattice codes, 1.75 bits"),
    _known("q1_0", 41, 128, 18, 128, "f16 scale, signs"),
    _known("i8", 24, 1, 1, 0, "integers"),
    _known("i16", 25, 1, 2, 0, "integers"),
    _known("i32", 26, 1, 4, 0, "integers"),
    _known("i64", 27, 1, 8, 0, "integers"),
    _known("f64", 28, 1, 8, 0, "binary64"),
)  # fmt: skip

FORMATS: dict[str, Format] = {row.name: row for row in _ROWS}
_BY_ID = {row.gguf_id: row for row in _ROWS}

# Numbers that GGUF gave out once and took back: no current file may hold them.
REMOVED: dict[int, str] = {
    4: "q4_2", 5: "q4_3", 31: "q4_0_4_4", 32: "q4_0_4_8", 33: "q4_0_8_8",
    36: "iq4_nl_4_4", 37: "iq4_nl_4_8", 38: "iq4_nl_8_8",
}  # fmt: skip


def by_gguf_id(number: int) -> Format | None:
    """The format of a GGUF tensor type number; None for one that we do not know."""
    return _BY_ID.get(number)


def format_of(name: str | Format) -> Format:
    """The format of that name.

    Raises UsageError ``usage.format`` for a name that is not in the table.
    """
    if isinstance(name, Format):
        return name
    row = FORMATS.get(name)
    if row is None:
        raise UsageError(
            "usage.format", f"no format {name!r}", remedy=f"one of: {', '.join(FORMATS)}"
        )
    return row


@dataclass(frozen=True, eq=False)
class QuantArray:
    """A matrix in a format: ``data`` uint8 [n, bytes of a row] stands for f32 ``shape`` [n, k];
    or several of them, [e, n, bytes of a row] for [e, n, k].

    Raises UsageError ``usage.format`` for a name that is not in the table, ``usage.format_shape``
    if the bytes do not fit the shape.

    >>> w = QuantArray("q8_0", (2, 32), np.zeros((2, 34), np.uint8))
    >>> w.decode().shape
    (2, 32)
    """

    format: str
    shape: tuple[int, ...]
    data: Bytes

    def __post_init__(self) -> None:
        wanted = (*self.shape[:-1], format_of(self.format).row_bytes(self.shape[-1]))
        if self.data.dtype != np.uint8 or self.data.shape != wanted:
            sizes = " x ".join(map(str, self.shape))
            raise _bad_rows(
                self.format, f"{self.data.dtype} {self.data.shape} for {sizes}, not u8 {wanted}"
            )

    def decode(self) -> Floats:
        """f32 of ``shape``; raises UsageError ``usage.format`` for a format known by name only."""
        decode = FORMATS[self.format].decode
        if decode is None:
            raise UsageError(
                "usage.format", f"{self.format} is not decoded", remedy="convert to another format"
            )
        return decode(self.data.reshape(-1, self.data.shape[-1])).reshape(self.shape)

    @staticmethod
    def encode(x: Floats, format: str) -> QuantArray:
        """f32 [n, k] or [e, n, k] in a format that we can write; raises UsageError
        ``usage.format``."""
        encode = format_of(format).encode
        if encode is None:
            raise UsageError(
                "usage.format", f"{format} is not written", remedy="q8_0, q4_0, q4_1, q5_0, q5_1"
            )
        rows = encode(x.reshape(-1, x.shape[-1]))
        return QuantArray(format, x.shape, rows.reshape(*x.shape[:-1], -1))
