"""A model's file in another format, for races between formats: every matrix decoded and encoded.

    python benchmarks/requantize.py MODEL.gguf FORMAT OUT.gguf [--head FORMAT] [--json]

FORMAT is one of q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k, f16, bf16, f32.  The embedding and
the output matrix take --head: by default q6_k for q4_k and q5_k (as such files commonly have it),
else FORMAT.  A matrix whose rows are not whole blocks gets q8_0, or f16 where that does not fit
either, and the table says so; vectors and metadata are copied.  The quality is that of plain
rounding, twice: for measuring speed and memory, not for text.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks import kquants, telling  # noqa: E402
from lanewise.checkpoint.gguf import Gguf  # noqa: E402
from lanewise.quant.format import FORMATS  # noqa: E402

WRITTEN = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k", "f16", "bf16", "f32")
HEADS = ("token_embd.weight", "output.weight")
_PART = 1 << 22  # elements at a time


def chosen(name: str, shape: Sequence[int], wanted: str, head: str) -> str | None:
    """The format of a tensor of this shape (rows, elements of a row); None: it is copied."""
    if len(shape) != 2 or not name.endswith(".weight"):
        return None
    for found in (head if name in HEADS else wanted, "q8_0"):
        if shape[1] % FORMATS[found].block == 0:
            return found
    return "f16"


def encoded(name: str, x: np.ndarray) -> np.ndarray:
    """f32 [n, k] in a format: uint8 [n, bytes of a row]."""
    if name in kquants.ENCODERS:
        return kquants.encode(name, x)
    encode = FORMATS[name].encode
    assert encode is not None
    return encode(x)


def converted(raw: np.ndarray, shape: Sequence[int], old: str, new: str) -> np.ndarray:
    """A matrix's bytes in another format, uint8 [rows, bytes of a row]."""
    rows, k = shape
    before, after = FORMATS[old], FORMATS[new]
    assert before.decode is not None
    source = raw.reshape(rows, before.row_bytes(k))
    out = np.empty((rows, after.row_bytes(k)), np.uint8)
    step = max(1, _PART // k)
    for at in range(0, rows, step):
        out[at : at + step] = encoded(new, before.decode(source[at : at + step]))
    return out


def metadata(writer: Any, path: str) -> None:
    """All of a file's metadata, as it stands there."""
    from gguf import GGUFReader, GGUFValueType

    for key, field in GGUFReader(path).fields.items():
        if key.startswith(("GGUF.", "split.")):
            continue
        if key in ("general.architecture", "general.file_type"):  # the writer's; no longer true
            continue
        inner = field.types[1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], sub_type=inner)


def requantize(model: str, wanted: str, out: str, head: str) -> dict[str, Any]:
    """Write the file; counts and bytes by format."""
    from gguf import GGMLQuantizationType, GGUFWriter

    found: dict[str, dict[str, int]] = {}
    with Gguf(model) as source:
        writer = GGUFWriter(out, str(source.metadata["general.architecture"]))
        metadata(writer, model)
        plan = {n: chosen(n, t.shape, wanted, head) for n, t in source.tensors.items()}
        for name, t in source.tensors.items():
            new = plan[name] or t.format
            row = FORMATS[new]
            nbytes = int(np.prod(t.shape[:-1])) * row.row_bytes(t.shape[-1])
            # The package divides by a block's elements itself where it is given bytes.
            shape = (*t.shape[:-1], row.row_bytes(t.shape[-1]))
            writer.add_tensor_info(
                name, shape, np.dtype(np.uint8), nbytes,
                raw_dtype=GGMLQuantizationType(row.gguf_id),
            )  # fmt: skip
            sums = found.setdefault(new, {"tensors": 0, "bytes": 0})
            sums["tensors"] += 1
            sums["bytes"] += nbytes
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name, t in source.tensors.items():
            raw, new = source.raw(name), plan[name]
            same = new is None or new == t.format
            writer.write_tensor_data(raw if same else converted(raw, t.shape, t.format, new))
        writer.close()
    return {"file": Path(out).name, "bytes": Path(out).stat().st_size, "formats": found}


def main(words: Sequence[str] | None = None) -> None:
    p = telling.parser(__doc__)
    p.add_argument("model")
    p.add_argument("format", choices=WRITTEN)
    p.add_argument("out")
    p.add_argument("--head", choices=WRITTEN, help="of the embedding and the output matrix")
    args: argparse.Namespace = p.parse_args(words)
    head = args.head or ("q6_k" if args.format in ("q4_k", "q5_k") else args.format)
    told = requantize(args.model, args.format, args.out, head)
    rows = [(n, str(s["tensors"]), f"{s['bytes'] / 1e6:.1f}") for n, s in told["formats"].items()]
    telling.tell(
        args,
        told,
        ("format", "tensors", "MB"),
        rows,
        [f"{told['file']}: {told['bytes'] / 1e6:.1f} MB"],
    )


if __name__ == "__main__":
    main()
