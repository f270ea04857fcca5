"""Products, packers and quantisers: every instruction set gives the recipe's bits."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanewise.kernels import recipes
from tests.kernels import matrices, native

DIGESTS = Path(__file__).parent.parent / "digests" / "products.json"
FORMATS = native.FLOATS + native.QUANTS + native.SMALL
CASES = [(i, f, a) for i in native.isas() for f, a in native.PAIRS]


def bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(np.uint32)


@functools.lru_cache(maxsize=64)
def matrix(fmt: str, n: int, k: int, seed: int) -> np.ndarray:
    return matrices.raw_matrix(fmt, n, k, np.random.default_rng(seed))


def model(fmt: str, act: str, raw: np.ndarray, x: np.ndarray) -> np.ndarray:
    """What the recipe makes of a matrix and activations."""
    if act in ("int8x2", "int8"):
        weights = matrices.taken_apart(fmt, raw)
        codes = recipes.quantize(x, act)  # type: ignore[arg-type]
        return recipes.quantized_product(weights, codes)
    weights = matrices.decoded(fmt, raw)
    if act == "f32":
        return recipes.float_product(weights, x)
    return recipes.reference_product(weights, x)


@functools.cache
def kernels(isa: str, fmt: str) -> native.Kernels:
    return native.Kernels(isa, fmt)


SHAPES = st.tuples(
    st.integers(1, 70),  # n
    st.integers(1, 44),  # blocks of 32 (k-quants: rounded up to 256)
    st.sampled_from([1, 2, 3, 4, 5, 7, 16, 17, 23, 40]),  # rows
    st.sampled_from([16, 32, 64, 128]),  # granule
    st.booleans(),  # with w1
    st.integers(0, 4),  # where a second thread's share begins, in granules
)


@pytest.mark.parametrize(("isa", "fmt", "act"), CASES)
@given(shape=SHAPES)
@settings(max_examples=4, deadline=None, derandomize=True)
def test_bits_are_the_recipes(isa: str, fmt: str, act: str, shape: tuple[int, ...]) -> None:
    n, blocks, rows, granule, paired, cut = shape
    k = -(-blocks * 32 // native.block(fmt)) * native.block(fmt)
    if fmt in native.FLOATS + native.SMALL:
        k -= n % 7  # float weights take any K
    kernel = kernels(isa, fmt)
    raw, raw1 = matrix(fmt, n, k, 1), matrix(fmt, n, k, 2)
    x = np.random.default_rng(n + rows).standard_normal((rows, k)).astype(np.float32)
    cuts = (cut * granule,) if 0 < cut * granule < n else ()
    packed = kernel.pack(raw, n, k)
    if not paired:
        got = kernel.product(act, packed, x, n, granule=granule, cuts=cuts)
        assert np.array_equal(bits(got), bits(model(fmt, act, raw, x)))
        return
    got = kernel.product(
        act, packed, x, n, packed1=kernel.pack(raw1, n, k), granule=granule, cuts=cuts
    )
    assert np.array_equal(bits(got[:, 0]), bits(model(fmt, act, raw, x)))
    assert np.array_equal(bits(got[:, 1]), bits(model(fmt, act, raw1, x)))


@pytest.mark.parametrize(("isa", "fmt", "act"), CASES)
def test_a_row_alone_has_the_same_bits(isa: str, fmt: str, act: str) -> None:
    """GEMV = GEMM: a long K of several chains, every row count up to 40."""
    n, k = 33, 1536
    kernel = kernels(isa, fmt)
    packed = kernel.pack(matrix(fmt, n, k, 3), n, k)
    x = np.random.default_rng(5).standard_normal((40, k)).astype(np.float32)
    alone = np.concatenate([kernel.product(act, packed, x[r : r + 1], n) for r in range(40)])
    for rows in (2, 3, 4, 6, 11, 18, 40):
        together = kernel.product(act, packed, x[:rows], n, granule=32)
        assert np.array_equal(bits(together), bits(alone[:rows])), rows


@pytest.mark.parametrize(("isa", "fmt", "act"), CASES)
@pytest.mark.parametrize(
    "tuning", [(-1, 1, 1, -1), (1024, 2, 2, 1), (4096, 3, 3, 20), (64, 99, 99, 54)]
)
def test_no_bit_depends_on_the_tuning(
    isa: str, fmt: str, act: str, tuning: tuple[int, int, int, int]
) -> None:
    """Prefetches far past the end, passes of every size, figures out of range; with and without
    sums of pairs."""
    n, k = 83, 2560
    kernel = kernels(isa, fmt)
    packed = kernel.pack(matrix(fmt, n, k, 3), n, k)
    x = np.random.default_rng(5).standard_normal((53, k)).astype(np.float32)
    for rows in (1, 3, 21, 53):
        plain = kernel.product(act, packed, x[:rows], n, granule=32)
        tuned = kernel.product(act, packed, x[:rows], n, granule=32, tuning=tuning)
        assert np.array_equal(bits(tuned), bits(plain)), rows


@pytest.mark.parametrize("isa", native.isas())
@pytest.mark.parametrize(("fmt", "header"), [("q8_0", 2), ("q4_0", 2), ("q4_1", 4)])
def test_the_largest_sums(isa: str, fmt: str, header: int) -> None:
    """Codes and activations at their ends: running sums may wrap, the sums of blocks may not."""
    n, k, rows = 32, 1056, 38
    rng = np.random.default_rng(8)
    raw = matrix(fmt, n, k, 1).copy()
    codes = raw.reshape(n, k // 32, -1)[:, :, header:]
    ends = np.array([0x80, 0x7F] if fmt == "q8_0" else [0x00, 0xFF], np.uint8)
    codes[:] = rng.choice(ends, codes.shape)
    codes[0], codes[1] = ends[0], ends[1]
    x = rng.choice(np.array([-3, 3], np.float32), (rows, k))
    x[0], x[1] = 3, -3
    kernel = kernels(isa, fmt)
    packed = kernel.pack(raw, n, k)
    for pairs in (-1, 1):
        got = kernel.product("int8x2", packed, x, n, tuning=(0, 0, 0, pairs))
        assert np.array_equal(bits(got), bits(model(fmt, "int8x2", raw, x))), pairs


# n, k, rows, granule, pairs: several chunks of K; several parts of rows; wide tiles of pairs.
LARGE = ((17, 4352, 18, 16, False), (16, 256, 1100, 16, False), (300, 256, 70, 256, True))


@pytest.mark.parametrize("isa", native.isas())
@pytest.mark.parametrize(
    ("fmt", "act"),
    [("q4_1", "int8x2"), ("q6_k", "int8x2"), ("q5_0", "int8"), ("f16", "f32"), ("q8_0", "f64")],
)
@pytest.mark.parametrize(("n", "k", "rows", "granule", "paired"), LARGE)
def test_large(
    isa: str, fmt: str, act: str, n: int, k: int, rows: int, granule: int, paired: bool
) -> None:
    """Where the loops around a tile turn over."""
    kernel = kernels(isa, fmt)
    raw, raw1 = matrix(fmt, n, k, 1), matrix(fmt, n, k, 2)
    x = np.random.default_rng(6).standard_normal((rows, k)).astype(np.float32)
    second = kernel.pack(raw1, n, k) if paired else None
    got = kernel.product(act, kernel.pack(raw, n, k), x, n, packed1=second, granule=granule)
    want = large_model(fmt, act, n, k, rows)
    assert np.array_equal(bits(got if second is None else got[:, 0]), bits(want))
    if second is not None:
        assert np.array_equal(bits(got[:, 1]), bits(model(fmt, act, raw1, x)))


@functools.cache
def large_model(fmt: str, act: str, n: int, k: int, rows: int) -> np.ndarray:
    x = np.random.default_rng(6).standard_normal((rows, k)).astype(np.float32)
    return model(fmt, act, matrix(fmt, n, k, 1), x)


@pytest.mark.parametrize(("fmt", "act"), native.PAIRS)
def test_close_to_float64(fmt: str, act: str) -> None:
    """Against the gguf package's weights in float64, within what the recipe's roundings allow."""
    n, k, rows = 48, 1280, 3
    raw = matrix(fmt, n, k, 7)
    x = np.random.default_rng(8).standard_normal((rows, k)).astype(np.float32)
    got = kernels(native.isas()[0], fmt).product(act, kernels(native.isas()[0], fmt).pack(
        raw, n, k), x, n)  # fmt: skip
    w = matrices.decoded(fmt, raw).astype(np.float64)
    size = np.abs(w)
    if act in ("int8x2", "int8"):
        parts = matrices.taken_apart(fmt, raw)
        sub = k // parts.scales.shape[1]
        size = np.abs(parts.codes * np.repeat(parts.scales.astype(np.float64), sub, axis=1))
        if parts.minimums is not None:
            size = size + np.repeat(np.abs(parts.minimums.astype(np.float64)), 32, axis=1)
    exact = x.astype(np.float64) @ w.T
    mass = np.abs(x).astype(np.float64) @ size.T
    if act == "f64":
        bound = mass * k * 2.0**-52 + np.abs(exact) * 2.0**-24
    elif act == "f32":
        bound = mass * (k + 4) * 2.0**-24
    else:
        codes = recipes.quantize(x, act)  # type: ignore[arg-type]
        step = np.repeat(codes.scales.astype(np.float64), 32, axis=1)
        bound = step @ np.abs(w).T * 0.502 + mass * (4 * k / 16) * 2.0**-24
    assert (np.abs(got - exact) <= bound).all()
    assert (np.abs(got - exact).max() > 0) or act == "f64"


@pytest.mark.parametrize("isa", native.isas())
@pytest.mark.parametrize("fmt", FORMATS)
@given(n=st.integers(1, 40), blocks=st.integers(1, 20), seed=st.integers(0, 99))
@settings(max_examples=5, deadline=None, derandomize=True)
def test_gather_decodes_what_was_packed(isa: str, fmt: str, n: int, blocks: int, seed: int) -> None:
    """Any bytes: also scales that are infinite or NaN."""
    per = native.block(fmt)
    k = -(-blocks * 32 // per) * per
    size = matrix(fmt, 1, k, 0).shape[1]
    raw = np.random.default_rng(seed).integers(0, 256, (n, size), dtype=np.uint8)
    kernel = kernels(isa, fmt)
    packed = kernel.pack(raw, n, k)
    with np.errstate(all="ignore"):
        want = matrices.decoded(fmt, raw)
    for row in {0, n // 2, n - 1}:
        got = kernel.gather(packed, n, k, row)
        number = ~np.isnan(want[row])
        assert np.array_equal(np.isnan(got), ~number)
        assert np.array_equal(bits(got[number]), bits(want[row][number]))


@pytest.mark.parametrize("fmt", FORMATS)
def test_packed_size(fmt: str) -> None:
    """At most 1.03 times the format's bytes, for whole panels of K >= 256."""
    kernel = kernels(native.isas()[0], fmt)
    for n, k in ((16, 256), (64, 768), (4096, 11008)):
        small = fmt in native.SMALL
        per, size = (1, 1) if small else gguf.GGML_QUANT_SIZES[matrices.TYPES[fmt]]
        assert kernel.packed_bytes(n, k) <= 1.03 * (n * k // per * size)
        assert kernel.packed_bytes(n - 3, k) == kernel.packed_bytes(n, k)


@pytest.mark.parametrize("isa", native.isas())
@pytest.mark.parametrize(("kind", "words"), [("int8x2", 2), ("int8", 1)])
def test_quantised_rows(isa: str, kind: str, words: int) -> None:
    """Every plane of a row, for any bits of input."""
    rng = np.random.default_rng(9)
    m, k = 60, 160
    x = rng.integers(0, 2**32, (m, k), dtype=np.uint64).astype(np.uint32).view(np.float32)
    x[10:] = (rng.standard_normal((m - 10, k)) * np.exp2(rng.integers(-150, 120, (m - 10, 1)))
              ).astype(np.float32)  # fmt: skip
    x[20, 32:64], x[21] = 0, -0.0
    x[22, 5], x[23, 70], x[24, 1] = np.nan, np.inf, -np.inf
    rows, stride = kernels(isa, "q4_0").activations(x, kind)
    rows, nb = rows.reshape(m, stride), k // 32
    want = recipes.quantize(x, kind)  # type: ignore[arg-type]
    v = rows[:, : nb * 32 * words].view(np.int8).reshape(m, nb, words, 32).astype(np.int32)
    v = 128 * v[:, :, 0] + v[:, :, 1] if words == 2 else v[:, :, 0]
    at = -(-nb * 32 * words // 64) * 64
    wide = rows[:, at : at + nb * 64].copy().view(np.int16).reshape(m, nb * 8, 4)
    s, sv, n32, n16, n8 = (
        rows[:, at + nb * 64 + o * nb * 4 :][:, : nb * 4 * w].copy()
        for o, w in ((0, 1), (1, 1), (2, 1), (3, 2), (5, 1))
    )
    sums = want.sums()
    with np.errstate(all="ignore"):
        product = want.scales * sums.astype(np.float32)
    assert np.array_equal(v.reshape(m, k), want.values)
    assert np.array_equal(wide[:, :, [0, 2, 1, 3]].reshape(m, k), want.values)
    assert np.array_equal(s.view(np.float32), want.scales, equal_nan=True)
    assert np.array_equal(sv.view(np.float32), product, equal_nan=True)
    assert np.array_equal(n32.view(np.int32), -sums)
    assert np.array_equal(n8.view(np.int32), -8 * sums)
    halves = want.values.reshape(m, nb * 2, 16).sum(axis=2)
    assert np.array_equal(n16.view(np.int32), -halves)
    if isa != "avx512" or words == 1:
        return
    # Of the fours 1, 3, 4, 6 and 7: products of neighbours, modulo 2^32.
    fours = want.values.astype(np.int64).reshape(m, nb, 2, 4, 4)
    products = (fours[..., 0] * fours[..., 1] + fours[..., 2] * fours[..., 3]) * (
        np.array([[0, 1, 0, 1], [1, 0, 1, 1]])
    )
    p32, p16 = (
        rows[:, at + nb * 64 + o * nb * 4 :][:, : nb * 4 * w].copy().view(np.uint32)
        for o, w in ((6, 1), (7, 2))
    )
    assert np.array_equal(p16, (-products.sum(axis=3)).astype(np.uint32).reshape(m, nb * 2))
    assert np.array_equal(p32, (-products.sum(axis=(2, 3))).astype(np.uint32))


@pytest.mark.parametrize(("isa", "fmt", "act"), [c for c in CASES if c[2] != "f64"])
def test_not_finite(isa: str, fmt: str, act: str) -> None:
    """Infinities and NaN poison the outputs that read them and no others."""
    n, k, rows = 20, 768, 6
    raw = matrix(fmt, n, k, 11).copy()
    if fmt in matrices.SCALES:
        at = matrices.SCALES[fmt][0]
        raw[3, at : at + 2] = np.array([np.inf], np.float16).view(np.uint8)
        raw[4, at : at + 2] = np.array([np.nan], np.float16).view(np.uint8)
    x = np.random.default_rng(12).standard_normal((rows, k)).astype(np.float32)
    clean = x.copy()
    x[1, 40], x[4, 700] = np.inf, np.nan
    kernel = kernels(isa, fmt)
    packed = kernel.pack(raw, n, k)
    for count in (2, rows):
        got = kernel.product(act, packed, x[:count], n)
        want = model(fmt, act, raw, x[:count])
        assert np.array_equal(np.isnan(got), np.isnan(want))
        assert np.array_equal(got, want, equal_nan=True)
        assert np.array_equal(got[0], kernel.product(act, packed, clean[:1], n)[0], equal_nan=True)
    if act in ("int8x2", "int8"):
        assert np.isnan(got[[1, 4]]).all() and np.isfinite(got[0, :3]).all()


@pytest.mark.parametrize(("isa", "fmt", "act"), CASES)
def test_no_rows(isa: str, fmt: str, act: str) -> None:
    kernel = kernels(isa, fmt)
    packed = kernel.pack(matrix(fmt, 16, 256, 0), 16, 256)
    assert kernel.product(act, packed, np.zeros((0, 256), np.float32), 16).shape == (0, 16)


def digest_case(fmt: str, act: str) -> tuple[np.ndarray, np.ndarray]:
    """A matrix [24, 768] and x [7, 768], from a generator whose stream will not change."""
    stream = np.random.PCG64(FORMATS.index(fmt))
    words = stream.random_raw(24 * 768 * 4 // 8 + 7 * 768)
    raw = words.view(np.uint8)[: matrix(fmt, 24, 768, 0).size].reshape(24, -1).copy()
    if fmt in native.FLOATS + native.SMALL:
        # Keep sign and mantissa, an exponent near one.
        if fmt == "f32":
            wide = (raw.view(np.uint32) & 0x807FFFFF) | 0x3F000000
        elif fmt in native.SMALL:
            wide = (raw & 0x87) | 0x30 if fmt == "f8_e4m3" else (raw & 0x83) | 0x38
        elif fmt == "f16":
            wide = (raw.view(np.uint16) & 0x83FF) | 0x3800
        else:
            wide = (raw.view(np.uint16) & 0x807F) | 0x3F00
        raw = wide.view(np.uint8)
    else:
        per, size = gguf.GGML_QUANT_SIZES[matrices.TYPES[fmt]]
        blocks = raw.reshape(24, 768 // per, size)
        for at in matrices.SCALES[fmt]:
            half = blocks[:, :, at : at + 2].copy().view(np.uint16)
            blocks[:, :, at : at + 2] = ((half & 0x83FF) | 0x2800).view(np.uint8)
    integers = (words[-7 * 768 :] >> 40).astype(np.float32) - np.float32(2**23)
    return raw, (integers / np.float32(2**22)).reshape(7, 768)


def digest(y: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(y).astype("<f4").tobytes()).hexdigest()[:16]


@pytest.mark.parametrize(("fmt", "act"), native.PAIRS)
def test_digests(fmt: str, act: str) -> None:
    """The committed bits, of the model and of every instruction set: 1 ULP is seen."""
    raw, x = digest_case(fmt, act)
    committed = json.loads(DIGESTS.read_text())[f"{fmt}_{act}"]
    assert digest(model(fmt, act, raw, x)) == committed
    for isa in native.isas():
        kernel = kernels(isa, fmt)
        assert digest(kernel.product(act, kernel.pack(raw, 24, 768), x, 24)) == committed, isa


if __name__ == "__main__":
    # Rewrites the digests; for a recipe that was changed on purpose, and renamed.
    table = {f"{f}_{a}": digest(model(f, a, *digest_case(f, a))) for f, a in native.PAIRS}
    DIGESTS.write_text(json.dumps(table, indent=1) + "\n")
