"""A GGUF file taken apart, so that one thing in it can be changed, and put together again.

`Doc.build` writes exactly what it is told (counts, kinds and offsets may lie); a document that
was not changed builds into the bytes that it was parsed from.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?",
          U64: "Q", I64: "q", F64: "d"}  # fmt: skip


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def scalar(kind: int, value: Any) -> bytes:
    return text(value) if kind == STRING else struct.pack("<" + _CODES[kind], value)


def array(kind: int, values: Any) -> bytes:
    return struct.pack("<IQ", kind, len(values)) + b"".join(scalar(kind, v) for v in values)


@dataclass
class Row:
    """A tensor of the table; ``dims`` in the file's order, ``offset`` within the data."""

    name: bytes
    dims: list[int]
    kind: int
    offset: int
    axes: int | None = None  # what the file says of len(dims), if it lies


@dataclass
class Doc:
    """A file: pairs as key -> (kind, raw value), rows of the table, the data after both.

    ``size``: bytes of data.  ``data`` may hold none of them: then the data is a hole."""

    pairs: dict[bytes, tuple[int, bytes]]
    rows: list[Row]
    data: bytearray
    size: int
    version: int = 3
    tensors: int | None = None
    count: int | None = None
    alignment: int = 32
    extra: list[tuple[bytes, int, bytes]] = field(default_factory=list)

    def row(self, name: str) -> Row:
        return next(r for r in self.rows if r.name == name.encode())

    def set(self, key: str, kind: int, value: Any) -> Doc:
        self.pairs[key.encode()] = (kind, scalar(kind, value))
        return self

    def set_array(self, key: str, kind: int, values: Any) -> Doc:
        self.pairs[key.encode()] = (ARRAY, array(kind, values))
        return self

    def drop(self, key: str) -> Doc:
        del self.pairs[key.encode()]
        return self

    def strings(self, key: str) -> list[bytes]:
        raw = self.pairs[key.encode()][1]
        at, out = 12, []
        for _ in range(struct.unpack_from("<Q", raw, 4)[0]):
            n = struct.unpack_from("<Q", raw, at)[0]
            out.append(raw[at + 8 : at + 8 + n])
            at += 8 + n
        return out

    def header(self) -> bytes:
        pairs = [(k, t, v) for k, (t, v) in self.pairs.items()] + self.extra
        out = [struct.pack(
            "<4sIQQ", b"GGUF", self.version,
            len(self.rows) if self.tensors is None else self.tensors,
            len(pairs) if self.count is None else self.count,
        )]  # fmt: skip
        for key, kind, value in pairs:
            out += [text(key), struct.pack("<I", kind), value]
        for r in self.rows:
            out += [text(r.name), struct.pack("<I", len(r.dims) if r.axes is None else r.axes)]
            out.append(struct.pack(f"<{len(r.dims)}Q", *r.dims))
            out.append(struct.pack("<IQ", r.kind, r.offset))
        out.append(bytes(-sum(map(len, out)) % self.alignment))
        return b"".join(out)

    def build(self) -> bytes:
        """The file, but for a hole at its end."""
        return self.header() + bytes(self.data)

    def append(self, raw: bytes) -> int:
        """Put bytes at the end of the data; where they begin in it."""
        at = self.size + -self.size % 32
        if self.data:
            self.data += bytes(at - self.size) + raw
        self.size = at + len(raw)
        return at


def parse(raw: bytes, hole: int = 0) -> Doc:
    """The document of a sound file, or of the header of one with a ``hole`` for its data."""
    at = 8
    tensors, count = struct.unpack_from("<QQ", raw, at)
    at += 16

    def take(code: str) -> Any:
        nonlocal at
        found = struct.unpack_from("<" + code, raw, at)
        at += struct.calcsize("<" + code)
        return found[0]

    def string() -> bytes:
        nonlocal at
        n = take("Q")
        at += n
        return raw[at - n : at]

    def skip(kind: int) -> None:
        if kind == STRING:
            string()
        elif kind == ARRAY:
            inner, n = take("I"), take("Q")
            for _ in range(n):
                skip(inner)
        else:
            take(_CODES[kind])

    pairs: dict[bytes, tuple[int, bytes]] = {}
    for _ in range(count):
        key, kind = string(), take("I")
        begin = at
        skip(kind)
        pairs[key] = (kind, raw[begin:at])
    rows = []
    for _ in range(tensors):
        name = string()
        dims = [take("Q") for _ in range(take("I"))]
        rows.append(Row(name, dims, take("I"), take("Q")))
    at += -at % 32
    return Doc(pairs, rows, bytearray(raw[at:]), hole or len(raw) - at)
