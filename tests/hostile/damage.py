"""Damaged copies of a checkpoint, each with a name and what is wanted of it.

``wanted``: the codes of errors that name the damage ("checkpoint.count|checkpoint.truncated"),
ANY (a named error or an answer of finite numbers) or FINE (it must answer: legal, if odd).
The catalogue holds one row for each way that we know of to lie in a GGUF file; random flips of
bits come on top.  It works on any sound llama file with a byte-level vocabulary.
"""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.hostile import gguf_edit as g
from tests.hostile.gguf_edit import Doc

ANY, FINE = "any", "fine"
HUGE = (1 << 64) - 1
Q8_0_BLOCK = 34


@dataclass(frozen=True)
class Copy:
    """One file to be: its name, its bytes and its size, if a hole follows them; what is wanted
    (see the module)."""

    name: str
    data: bytes
    wanted: str
    size: int = 0

    def write(self, path: Path) -> None:
        path.write_bytes(self.data)
        if self.size:
            with path.open("r+b") as file:
                file.truncate(self.size)


Change = Callable[[Doc], object]


def structure(doc: Doc) -> Iterator[tuple[str, str, Change]]:
    """(name, wanted, change) of everything that a header can lie about."""
    yield from _counts()
    yield from _table()
    yield from _hyperparameters(doc)
    yield from _tokens(doc)
    yield from _templates()


def _counts() -> Iterator[tuple[str, str, Change]]:
    for n in (HUGE, 1 << 63, 1 << 40, 70000):
        yield f"{n} tensors", "checkpoint.count", lambda d, n=n: setattr(d, "tensors", n)
        yield f"{n} pairs", "checkpoint.count", lambda d, n=n: setattr(d, "count", n)
    yield "no tensors", "checkpoint.empty", lambda d: d.rows.clear()
    yield "one tensor fewer told", "model.missing_tensor|refused", lambda d: setattr(
        d, "tensors", len(d.rows) - 1)
    yield "one tensor more told", "checkpoint", lambda d: setattr(d, "tensors", len(d.rows) + 1)
    yield "one pair fewer told", "checkpoint", lambda d: setattr(d, "count", len(d.pairs) - 1)
    yield "one pair more told", "checkpoint", lambda d: setattr(d, "count", len(d.pairs) + 1)
    for version in (0, 1, 4, HUGE >> 32):
        yield f"version {version}", "checkpoint.version", lambda d, v=version: setattr(
            d, "version", v)
    nest = struct.pack("<IQ", g.ARRAY, 1) * 5000
    yield "arrays without end", "checkpoint.nested", lambda d: d.extra.append((b"a", g.ARRAY, nest))
    for n in (HUGE, 1 << 62, 1 << 33):
        for kind in (g.U8, g.F64, g.STRING, g.BOOL):
            yield f"an array of {n} of type {kind}", "checkpoint.count|checkpoint.truncated", (
                lambda d, n=n, k=kind: d.extra.append((b"a", g.ARRAY, struct.pack("<IQ", k, n))))
        yield f"a text of {n} bytes", "checkpoint.count|checkpoint.truncated", lambda d, n=n: (
            d.extra.append((b"a", g.STRING, struct.pack("<Q", n))))
    yield "a key twice", "checkpoint.duplicate", lambda d: d.extra.append(
        (b"general.name", g.U8, b"\1"))
    yield "a type that is not", "checkpoint.type", lambda d: d.extra.append((b"a", 77, b""))
    for n, wanted in ((0, ".alignment"), (3, ".alignment"), (1 << 31, "")):
        yield f"an alignment of {n}", "checkpoint" + wanted, lambda d, n=n: d.set(
            "general.alignment", g.U32, n)
    yield "split into 2^32-1 files", "checkpoint.split", lambda d: d.set(
        "split.count", g.U32, HUGE >> 32)
    yield "split into two files", "checkpoint.split", lambda d: d.set("split.count", g.U16, 2)


def _table() -> Iterator[tuple[str, str, Change]]:
    wide, norm, table = "blk.0.attn_q.weight", "blk.1.ffn_norm.weight", "token_embd.weight"
    for name in (wide, norm, table):
        for offset in (1 << 62, 1 << 40, HUGE & ~31):
            yield f"{name} at {offset}", "checkpoint.truncated", (
                lambda d, n=name, o=offset: setattr(d.row(n), "offset", o))
        yield f"{name} misaligned", "checkpoint.alignment", lambda d, n=name: setattr(
            d.row(n), "offset", d.row(n).offset + 4)
        yield f"{name} lost", "model.missing_tensor|checkpoint.gap", lambda d, n=name: (
            d.rows.remove(d.row(n)))
        yield f"{name} by another name", "refused|model", lambda d, n=name: setattr(
            d.row(n), "name", b"x" + d.row(n).name)
        yield f"{name} with no axes", "checkpoint.shape", lambda d, n=name: setattr(
            d.row(n), "axes", 0)
        yield f"{name} with 2^32-1 axes", "checkpoint.shape", lambda d, n=name: setattr(
            d.row(n), "axes", HUGE >> 32)
        yield f"{name} of {HUGE} rows", "checkpoint", lambda d, n=name: d.row(n).dims.append(HUGE)
        yield f"{name} without elements", "checkpoint.shape", lambda d, n=name: (
            d.row(n).dims.__setitem__(0, 0))
        yield f"{name} of a type that is not", "checkpoint.type|checkpoint.format", (
            lambda d, n=name: setattr(d.row(n), "kind", 4000))
        yield f"{name} of half the width", "model.shape|checkpoint.shape|checkpoint.gap", (
            lambda d, n=name: d.row(n).dims.__setitem__(0, d.row(n).dims[0] // 2))
        yield f"{name} in another's place", "checkpoint.overlap|checkpoint.gap", lambda d, n=name: (
            setattr(d.row(n), "offset", d.row("blk.0.ffn_gate.weight").offset))
    for kind in (0, 1, 2, 6, 12, 14, 16, 24, 27, 28, 30, 34, 39):
        yield f"{wide} as type {kind}", "checkpoint|model", lambda d, k=kind: setattr(
            d.row(wide), "kind", k)
        yield f"{norm} as type {kind}", "checkpoint|model" if kind else FINE, (
            lambda d, k=kind: setattr(d.row(norm), "kind", k))
    yield "a tensor twice", "checkpoint.duplicate", lambda d: setattr(
        d.row(wide), "name", b"blk.0.attn_k.weight")
    yield "gate and down change shapes", "model.shape|refused", _swap_shapes
    yield "names of q and v changed over", "model.shape|refused", lambda d: _swap_names(
        d, "blk.0.attn_q.weight", "blk.0.attn_v.weight")
    yield "names of gate and up changed over", FINE, lambda d: _swap_names(
        d, "blk.0.ffn_gate.weight", "blk.0.ffn_up.weight")
    yield "a tensor of a layer that is not known", "model.unknown_tensor", lambda d: d.rows.append(
        g.Row(b"blk.0.attn_sinks.weight", [4], 0, d.append(bytes(16))))
    yield "a head of another width", "model.shape", lambda d: d.rows.append(
        g.Row(b"output.weight", [4, 4], 0, d.append(bytes(64))))
    yield "rope factors of the wrong length", "model.hyperparameter", lambda d: d.rows.append(
        g.Row(b"rope_freqs.weight", [3], 0, d.append(bytes(12))))
    yield "rope factors of NaN", "model.hyperparameter", lambda d: d.rows.append(
        g.Row(b"rope_freqs.weight", [_pairs(d)], 0, d.append(b"\xff" * 4 * _pairs(d))))


def _pairs(d: Doc) -> int:
    heads = struct.unpack("<I", d.pairs[_arch(d) + b".attention.head_count"][1])[0]
    return struct.unpack("<I", d.pairs[_arch(d) + b".embedding_length"][1])[0] // heads // 2


def _arch(d: Doc) -> bytes:
    return d.pairs[b"general.architecture"][1][8:]


def _swap_shapes(d: Doc) -> None:
    a, b = d.row("blk.0.ffn_gate.weight"), d.row("blk.0.ffn_down.weight")
    a.dims, b.dims = b.dims, a.dims


def _swap_names(d: Doc, one: str, other: str) -> None:
    a, b = d.row(one), d.row(other)
    a.name, b.name = b.name, a.name


def _hyperparameters(doc: Doc) -> Iterator[tuple[str, str, Change]]:
    a = _arch(doc).decode()
    needed = ("block_count", "context_length", "embedding_length", "feed_forward_length",
              "attention.head_count", "attention.head_count_kv")  # fmt: skip
    for key in (f"{a}.{k}" for k in needed):
        if key != a + ".attention.head_count_kv":
            yield f"{key} lost", "model|refused", lambda d, k=key: d.drop(k)
        for value in (0, 1, 7, HUGE >> 32):
            if "context" not in key or value not in (1, 7):
                yield f"{key} of {value}", "model|refused", lambda d, k=key, v=value: d.set(
                    k, g.U32, v)
        yield f"{key} of -1", "model|refused", lambda d, k=key: d.set(k, g.I64, -1)
        yield f"{key} as text", "model|refused", lambda d, k=key: d.set(k, g.STRING, "2")
        yield f"{key} as a list", "model|refused", lambda d, k=key: d.set_array(k, g.U32, [2, 2])
        yield f"{key} as a float", "model|refused", lambda d, k=key: d.set(k, g.F32, 2.5)
    for key, bad in (("attention.layer_norm_rms_epsilon", (0.0, -1.0, 1e9)),
                     ("rope.freq_base", (0.0, -5.0, 1e30))):  # fmt: skip
        for value in (*bad, np.nan, np.inf, -np.inf):
            yield f"{key} of {value}", "model", lambda d, k=key, v=value: d.set(
                f"{a}.{k}", g.F32, v)
        yield f"{key} as text", "model", lambda d, k=key: d.set(f"{a}.{k}", g.STRING, "x")
    for n in (1, 5, 1 << 20):
        yield f"rope.dimension_count of {n}", "model", lambda d, n=n: d.set(
            a + ".rope.dimension_count", g.U32, n)
    for key, kind, value in (
        ("rope.scaling.type", g.STRING, "yarn"), ("rope.scaling.type", g.U32, 3),
        ("rope.scale_linear", g.F32, 0.0), ("expert_count", g.U32, 8),
        ("attention.value_length", g.U32, 4), ("attention.key_length", g.U32, 1 << 30),
        ("attention.scale", g.F32, float("nan")), ("attention.sliding_window", g.I32, -2),
    ):  # fmt: skip
        yield f"{key} of {value}", "model|refused", lambda d, k=key, t=kind, v=value: d.set(
            f"{a}.{k}", t, v)
    for value in ("", "mamba", "x" * 100000, "llama\0", "../../etc/passwd"):
        yield f"architecture {value[:12]!r}", "model.architecture", lambda d, v=value: d.set(
            "general.architecture", g.STRING, v)
    yield "architecture lost", "model.architecture", lambda d: d.drop("general.architecture")
    yield "architecture 7", "model.architecture", lambda d: d.set("general.architecture", g.U32, 7)
    yield "architecture not UTF-8", "checkpoint.utf8", lambda d: d.set(
        "general.architecture", g.STRING, b"\xff\xfe")
    yield "a name that is no text", ANY, lambda d: d.set("general.name", g.U32, 7).drop(
        "tokenizer.ggml.tokens")
    yield "a name of escapes", FINE, lambda d: d.set(
        "general.name", g.STRING, "*/\n#error\n\\\n\x1b[2J\r\u2028" + "x" * 9000)


def _tokens(doc: Doc) -> Iterator[tuple[str, str, Change]]:
    p = "tokenizer.ggml."
    count, known = len(doc.strings(p + "tokens")), b"hu" in doc.strings(p + "tokens")
    for key in ("tokens", "merges"):
        yield f"{key} lost", "text.vocabulary", lambda d, k=key: d.drop(p + k)
        yield f"{key} as numbers", "text.vocabulary", lambda d, k=key: d.set_array(
            p + k, g.U32, range(count))
        yield f"{key} as one text", "text.vocabulary", lambda d, k=key: d.set(
            p + k, g.STRING, "a b")
        yield f"{key} not UTF-8", "checkpoint.utf8", lambda d, k=key: _put(
            d, p + k, 3, b"\xff\xfe \xff")
    yield "no tokens", "text.vocabulary", lambda d: d.set_array(p + "tokens", g.STRING, [])
    yield "one token more", "model.shape|text.vocabulary", lambda d: d.set_array(
        p + "tokens", g.STRING, [*d.strings(p + "tokens"), b"more"])
    yield "half the tokens", "text", lambda d: d.set_array(
        p + "tokens", g.STRING, d.strings(p + "tokens")[: count // 2])
    yield "one token twice", ANY, lambda d: _put(d, p + "tokens", 9, b"the")
    yield "an empty token", ANY, lambda d: _put(d, p + "tokens", 9, b"")
    yield "a token of 100 kB", ANY, lambda d: _put(d, p + "tokens", 9, b"y" * 100000)
    yield "kinds lost", FINE, lambda d: d.drop(p + "token_type")
    for kind, values in ((g.I32, [1]), (g.I32, [1] * (count + 1)), (g.I32, [99] * count),
                         (g.I32, [-1] * count), (g.F32, [1.0] * count),
                         (g.STRING, ["1"] * count)):  # fmt: skip
        yield f"{len(values)} kinds {values[0]!r}", "text.vocabulary", (
            lambda d, k=kind, v=values: d.set_array(p + "token_type", k, v))
    yield "all tokens are control", ANY, lambda d: d.set_array(p + "token_type", g.I32, [3] * count)
    yield "all tokens are defined", ANY, lambda d: d.set_array(p + "token_type", g.I32, [4] * count)
    yield "scores of NaN", "text.vocabulary", lambda d: d.set_array(
        p + "scores", g.F32, [float("nan")] * count)
    for name, merge, wanted in (
        ("no blank", b"th", "text.vocabulary"), ("three parts", b"t h e", "text.vocabulary"),
        ("nothing", b"", "text.vocabulary"), ("an unknown token", b"zzz qqq", ANY),
        ("an unknown result", b"z q", ANY),
        ("a result that the text needs", b"h u", ANY if known else "text.vocabulary"),
    ):  # fmt: skip
        yield f"a merge of {name}", wanted, lambda d, m=merge: _put(d, p + "merges", 1, m)
    for key in ("bos_token_id", "eos_token_id"):
        yield f"{key} beyond", "text.vocabulary", lambda d, k=key: d.set(p + k, g.U32, count)
        yield f"{key} of -7", "text.vocabulary", lambda d, k=key: d.set(p + k, g.I32, -7)
        yield f"{key} as text", "text.vocabulary", lambda d, k=key: d.set(p + k, g.STRING, "0")
    yield "add_bos_token of 3", "text.vocabulary", lambda d: d.set(p + "add_bos_token", g.U32, 3)
    yield "model of no kind", "text.model", lambda d: d.set(p + "model", g.STRING, "bert")
    yield "model 5", "text", lambda d: d.set(p + "model", g.U32, 5)
    yield "model llama without scores", "text", lambda d: d.set(p + "model", g.STRING, "llama")
    yield "pre of no kind", "text.pretokenizer", lambda d: d.set(p + "pre", g.STRING, "none such")
    yield "pre as a list", "text", lambda d: d.set_array(p + "pre", g.U32, [1])


def _put(d: Doc, key: str, at: int, value: bytes) -> None:
    values = d.strings(key)
    values[min(at, len(values) - 1)] = value
    d.set_array(key, g.STRING, values)


TEMPLATES = (  # name, wanted, text
    ("half a tag", "text.template", "{% for m in messages %}"),
    ("no expression", "text.template", "{{ }}"),
    ("an unknown filter", "text.template", "{{ messages|nosuch }}"),
    ("its own refusal", "text.template_refused", "{{ raise_exception('no') }}"),
    ("a loop without end", "text.template_limit",
     "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}"),
    ("text without end", "text", "{{ 'x' * 10000000000 }}"),
    ("a power without end", "text", "{{ 9 ** (9 ** 9) }}"),
    ("a way out", "text", "{{ ''.__class__.__mro__[1].__subclasses__() }}"),
    ("a macro that calls itself", "text", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
    ("deep nesting", "text", "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}"),
    ("a division by zero", "text.template", "{{ 1 // 0 }}"),
    ("an include", "text", "{% include '/etc/passwd' %}"),
    ("200 kB of it", "text.template_limit", "x" * 200000),
    ("nothing", "text.template", ""),
    ("more than the context", "usage.context", "{{ 'word ' * 20000 }}"),
)


def _templates() -> Iterator[tuple[str, str, Change]]:
    for name, wanted, source in TEMPLATES:
        yield f"template: {name}", wanted, lambda d, s=source: d.set(
            "tokenizer.chat_template", g.STRING, s)
    yield "template 7", "text.template", lambda d: d.set("tokenizer.chat_template", g.U32, 7)
    yield "template lost", FINE, lambda d: d.drop("tokenizer.chat_template")


def numbers(doc: Doc) -> Iterator[tuple[str, str, Change]]:
    """Numbers that are no numbers, in gains and in the scales of q8_0 blocks."""
    for tensor in ("blk.0.attn_norm.weight", "blk.1.ffn_norm.weight", "output_norm.weight"):
        for value, wanted in ((np.nan, "run.not_finite"), (np.inf, "run.not_finite"),
                              (-np.inf, "run.not_finite"), (3e38, ANY), (-3e38, ANY), (1e-42, FINE),
                              (0.0, FINE)):  # fmt: skip
            yield f"{tensor} holds {value}", wanted, lambda d, t=tensor, v=value: _float(d, t, 5, v)
        yield f"{tensor} is NaN", "run.not_finite", lambda d, t=tensor: _fill(d, t, np.nan)
        yield f"{tensor} is 1e38", ANY, lambda d, t=tensor: _fill(d, t, 1e38)
    for tensor in ("blk.0.attn_v.weight", "blk.0.attn_q.weight", "blk.1.ffn_down.weight"):
        for name, bits, wanted in (("NaN", 0x7E00, "run.not_finite"), ("inf", 0x7C00, ANY),
                                   ("65504", 0x7BFF, ANY), ("-65504", 0xFBFF, ANY),
                                   ("a denormal", 1, FINE), ("-0", 0x8000, FINE)):  # fmt: skip
            yield f"a scale of {tensor} is {name}", wanted, (
                lambda d, t=tensor, b=bits: _scale(d, t, 0, b))
            yield f"scales of {tensor} are {name}", wanted, (
                lambda d, t=tensor, b=bits: _scale(d, t, None, b))


def _float(d: Doc, tensor: str, at: int, value: float) -> None:
    struct.pack_into("<f", d.data, d.row(tensor).offset + 4 * at, value)


def _fill(d: Doc, tensor: str, value: float) -> None:
    for at in range(d.row(tensor).dims[0]):
        _float(d, tensor, at, value)


def _scale(d: Doc, tensor: str, block: int | None, bits: int) -> None:
    row = d.row(tensor)
    count = row.dims[0] * row.dims[1] // 32
    for at in range(count) if block is None else [block]:
        struct.pack_into("<H", d.data, row.offset + Q8_0_BLOCK * at, bits)


def truncated(raw: bytes, header: int, count: int) -> Iterator[Copy]:
    """Cut short: half of the places in the header."""
    places = [*np.linspace(0, header, count // 2).astype(int),
              *np.linspace(header + 1, len(raw) - 1, count - count // 2).astype(int)]  # fmt: skip
    for at in dict.fromkeys(map(int, places)):
        yield Copy(f"cut at {at}", raw[:at], "checkpoint.truncated")


def flipped(raw: bytes, begin: int, end: int, count: int, seed: int) -> Iterator[Copy]:
    """One to four bits flipped in a range of bytes."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        data = bytearray(raw)
        places = rng.integers(begin, end, 1 + i % 4)
        for at in places:
            data[at] ^= 1 << int(rng.integers(8))
        yield Copy(f"flip {i} at {places.tolist()}", bytes(data), ANY)


def changed(doc: Doc, rows: Iterator[tuple[str, str, Change]]) -> Iterator[Copy]:
    for name, wanted, change in rows:
        new = copy.deepcopy(doc)
        change(new)
        built = new.build()
        yield Copy(name, built, wanted, 0 if new.data else len(built) + new.size)


def copies(raw: bytes, *, cuts: int, header: int, weights: int, seed: int = 1) -> Iterator[Copy]:
    """Damaged copies of a tiny q8_0 checkpoint: the whole catalogue, and so many of each kind of
    random damage."""
    doc = g.parse(raw)
    yield Copy("sound", raw, FINE)
    yield from changed(doc, structure(doc))
    yield from changed(doc, numbers(doc))
    at = len(doc.header())
    yield from truncated(raw, at, cuts)
    yield from flipped(raw, 0, at, header, seed)
    yield from flipped(raw, at, len(raw), weights, seed + 1)
