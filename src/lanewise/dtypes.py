"""The scalar types, by name: one table.

Laws: a name says kind and bits and nothing else; bytes are little endian; importing this module
loads neither NumPy extensions nor anything slow (bf16 and the 8-bit floats come from ml_dtypes, on
first use).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lanewise.errors import UsageError


@dataclass(frozen=True, slots=True)
class DType:
    """One scalar type: ``name``, ``itemsize`` in bytes, ``kind`` one of f (float), i, u, b."""

    name: str
    itemsize: int
    kind: str
    doc: str

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype, little endian; some need ml_dtypes, imported here and only here."""
        if self.name in _EXTENSIONS:
            import ml_dtypes

            return np.dtype(getattr(ml_dtypes, _EXTENSIONS[self.name]))
        return np.dtype(_NUMPY[self.name])

    @property
    def is_float(self) -> bool:
        """True for f64, f32, f16, bf16, f8_e4m3 and f8_e5m2."""
        return self.kind == "f"

    def __str__(self) -> str:
        return self.name


_NUMPY = {
    "f64": "<f8", "f32": "<f4", "f16": "<f2",
    "i64": "<i8", "i32": "<i4", "i16": "<i2", "i8": "i1",
    "u64": "<u8", "u32": "<u4", "u16": "<u2", "u8": "u1",
    "bool": "?",
}  # fmt: skip

_EXTENSIONS = {"bf16": "bfloat16", "f8_e4m3": "float8_e4m3fn", "f8_e5m2": "float8_e5m2"}

DTYPES: dict[str, DType] = {
    row.name: row
    for row in (
        DType("f64", 8, "f", "IEEE binary64"),
        DType("f32", 4, "f", "IEEE binary32"),
        DType("f16", 2, "f", "IEEE binary16"),
        DType("bf16", 2, "f", "the upper half of a binary32"),
        DType("f8_e4m3", 1, "f", "4 bits of exponent, 3 of mantissa, to 448; no infinity; storage"),
        DType("f8_e5m2", 1, "f", "the upper half of a binary16; storage"),
        DType("i64", 8, "i", "signed, two's complement"),
        DType("i32", 4, "i", "signed, two's complement"),
        DType("i16", 2, "i", "signed, two's complement"),
        DType("i8", 1, "i", "signed, two's complement"),
        DType("u64", 8, "u", "unsigned"),
        DType("u32", 4, "u", "unsigned"),
        DType("u16", 2, "u", "unsigned"),
        DType("u8", 1, "u", "unsigned"),
        DType("bool", 1, "b", "one byte, 0 or 1"),
    )
}


def dtype(name: str | DType) -> DType:
    """The type of that name.

    Raises UsageError ``usage.dtype`` for a name that is not in the table.
    """
    if isinstance(name, DType):
        return name
    row = DTYPES.get(name) if isinstance(name, str) else None
    if row is None:
        own = known_as(name)
        known = f"{f'write {own!r}; ' if own else ''}one of: {', '.join(DTYPES)}"
        raise UsageError("usage.dtype", f"no scalar type {name!r}", remedy=known)
    return row


def known_as(kind: Any) -> str:
    """Our name of what NumPy or torch call a dtype, for remedies; "" if there is none."""
    text = str(kind).rpartition(".")[2].lower()  # "torch.float16", "F32"
    if text in DTYPES:
        return text
    try:
        return "" if kind is None else from_numpy(text if "torch" in str(kind) else kind).name
    except (TypeError, ValueError, UsageError):
        return "bf16" if text == "bfloat16" else ""


def from_numpy(kind: Any) -> DType:
    """The row of a NumPy dtype (anything that ``np.dtype`` takes).

    Raises UsageError ``usage.dtype`` for one without a row, big-endian ones among them.
    """
    wanted = np.dtype(kind)
    for name, spelled in _EXTENSIONS.items():
        if wanted.name == spelled:
            return DTYPES[name]
    for name, spelled in _NUMPY.items():
        if wanted == np.dtype(spelled):
            return DTYPES[name]
    raise UsageError(
        "usage.dtype", f"no scalar type for the NumPy dtype {wanted}",
        remedy=f"convert to one of: {', '.join(DTYPES)}",
    )  # fmt: skip


def extension(kind: np.dtype[Any]) -> bool:
    """Is it a NumPy dtype of ours that comes from ml_dtypes?"""
    return kind.name in _EXTENSIONS.values()


def is_float(name: str | DType) -> bool:
    """True if the type of that name is a float; raises as `dtype` does."""
    return dtype(name).is_float
