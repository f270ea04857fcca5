"""Every format against the ``gguf`` package, bit for bit (a NaN equals a NaN)."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lanewise.errors import UsageError
from lanewise.quant.format import FORMATS, REMOVED, QuantArray, by_gguf_id, format_of

DECODED = [f for f in FORMATS.values() if f.decode]
QUANTISED = [f for f in DECODED if f.quantised]
ENCODED = [f for f in FORMATS.values() if f.encode]
REQUIRED = {
    "f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k",
    "q6_k", "iq4_nl", "iq4_xs", "mxfp4", "nvfp4", "tq1_0", "tq2_0",
}  # fmt: skip
# Where each format keeps its f16 scales: hypothesis is unlikely to hit odd ones by chance.
SCALES = {
    "q4_0": [0], "q4_1": [0, 2], "q5_0": [0], "q5_1": [0, 2], "q8_0": [0], "q2_k": [80, 82],
    "q3_k": [108], "q4_k": [0, 2], "q5_k": [0, 2], "q6_k": [208], "iq4_nl": [0], "iq4_xs": [0],
    "tq1_0": [52], "tq2_0": [64],
}  # fmt: skip
ODD_HALVES = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x3C00, 0x7BFF, 0xFBFF,
              0x7C00, 0xFC00, 0x7C01, 0x7E00, 0xFE00, 0xFFFF]  # fmt: skip

ids = lambda rows: [row.name for row in rows]  # noqa: E731


def oracle(raw: np.ndarray, fmt) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(raw, GGMLQuantizationType(fmt.gguf_id))


def assert_same_bits(got: np.ndarray, want: np.ndarray) -> None:
    assert got.dtype == want.dtype == np.float32
    assert got.shape == want.shape
    nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), nan)
    mask = np.where(nan, np.uint32(0), np.uint32(0xFFFFFFFF))
    np.testing.assert_array_equal(got.view(np.uint32) & mask, want.view(np.uint32) & mask)


def test_the_required_formats_decode():
    assert {f.name for f in DECODED} == REQUIRED


def test_sizes_and_numbers_are_those_of_gguf():
    for kind, (block, nbytes) in GGML_QUANT_SIZES.items():
        row = by_gguf_id(int(kind))
        assert row is not None, kind.name
        if row.name == "q8_1":
            nbytes = 36  # the package counts f32 fields; ggml's block_q8_1 has f16 ones
        assert (row.name, row.block, row.nbytes) == (kind.name.lower(), block, nbytes)
    assert len({f.gguf_id for f in FORMATS.values()}) == len(FORMATS)
    assert not REMOVED.keys() & {f.gguf_id for f in FORMATS.values()}


def test_numbers_we_do_not_know():
    assert by_gguf_id(4) is None
    assert by_gguf_id(255) is None
    with pytest.raises(UsageError) as caught:
        format_of("q4_9")
    assert caught.value.code == "usage.format"
    assert format_of("q6_k").gguf_id == 14


@pytest.mark.parametrize("fmt", DECODED, ids=ids(DECODED))
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_decode_any_bytes(fmt, data):
    shape = (data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3)) * fmt.nbytes)
    raw = data.draw(hnp.arrays(np.uint8, shape))
    assert_same_bits(fmt.decode(raw), oracle(raw, fmt))


@pytest.mark.parametrize("fmt", DECODED, ids=ids(DECODED))
def test_decode_many_random_blocks(fmt):
    rng = np.random.default_rng(fmt.gguf_id)
    raw = rng.integers(0, 256, (37, fmt.nbytes * 24), np.uint8)
    assert_same_bits(fmt.decode(raw), oracle(raw, fmt))


@pytest.mark.parametrize("fmt", DECODED, ids=ids(DECODED))
def test_every_value_of_every_byte(fmt):
    """Block (i, b): byte i holds b, the rest is random: each field meets each value."""
    rng = np.random.default_rng(100 + fmt.gguf_id)
    raw = np.repeat(rng.integers(0, 256, (1, fmt.nbytes), np.uint8), fmt.nbytes * 256, axis=0)
    i, b = np.divmod(np.arange(raw.shape[0]), 256)
    raw[np.arange(raw.shape[0]), i] = b
    assert_same_bits(fmt.decode(raw), oracle(raw, fmt))


@pytest.mark.parametrize("name", SCALES)
def test_odd_scales(name):
    """Zeros of both signs, subnormals, infinities and NaNs in every pair of scale fields."""
    fmt = FORMATS[name]
    rng = np.random.default_rng(7)
    first, second = np.divmod(np.arange(len(ODD_HALVES) ** 2), len(ODD_HALVES))
    raw = rng.integers(0, 256, (len(first), fmt.nbytes), np.uint8)
    raw[::2] &= 0x0F  # codes and sub-scales of zero too
    for at, which in zip(SCALES[name], (first, second), strict=False):
        halves = np.array(ODD_HALVES, "<u2")[which]
        raw[:, at : at + 2] = halves[:, None].view(np.uint8)
    assert_same_bits(fmt.decode(raw), oracle(raw, fmt))


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_every_16_bit_float(name):
    raw = np.arange(65536, dtype="<u2").view(np.uint8).reshape(256, -1)
    got = FORMATS[name].decode(raw).reshape(-1)
    assert_same_bits(got[None], oracle(raw, FORMATS[name]).reshape(1, -1))


def test_decoders_round_at_most_once():
    """In f64, where nothing rounds, the values are within half an ULP of f32."""
    rng = np.random.default_rng(3)
    raw = rng.integers(0, 256, (64, 18 + 2), np.uint8)
    d, m = (np.ascontiguousarray(raw[:, i : i + 2]).view("<f2").astype(np.float64) for i in (0, 2))
    codes = np.hstack([raw[:, 4:] & 15, raw[:, 4:] >> 4]).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        exact = d * codes + m
        assert_same_bits(FORMATS["q4_1"].decode(raw), exact.astype(np.float32))


def test_large_input_equals_its_pieces():
    fmt = FORMATS["q4_k"]
    rng = np.random.default_rng(5)
    raw = rng.integers(0, 256, (300, fmt.nbytes * 9), np.uint8)
    whole = fmt.decode(raw)
    for row in (0, 150, 299):
        assert_same_bits(whole[row : row + 1], fmt.decode(raw[row : row + 1]))


def test_non_contiguous_rows():
    fmt = FORMATS["q5_1"]
    raw = np.random.default_rng(6).integers(0, 256, (8, fmt.nbytes * 4), np.uint8)
    assert_same_bits(fmt.decode(raw[::2]), oracle(np.ascontiguousarray(raw[::2]), fmt))


@pytest.mark.parametrize("fmt", DECODED, ids=ids(DECODED))
def test_decode_refuses_what_is_not_rows_of_blocks(fmt):
    wrong_type = np.zeros((2, fmt.nbytes), np.int16)
    one_axis = np.zeros(fmt.nbytes, np.uint8)
    not_whole = np.zeros((1, fmt.nbytes + 1), np.uint8)
    for bad in (wrong_type, one_axis, not_whole):
        with pytest.raises(UsageError) as caught:
            fmt.decode(bad)
        assert caught.value.code == "usage.format_shape"
        assert caught.value.place == fmt.name
    assert fmt.decode(np.zeros((0, fmt.nbytes), np.uint8)).shape == (0, fmt.block)


def test_row_bytes():
    assert FORMATS["q4_1"].row_bytes(576) == 18 * 20
    assert FORMATS["q6_k"].bits == 6.5625
    for k in (0, -32, 33):
        with pytest.raises(UsageError):
            FORMATS["q4_1"].row_bytes(k)


# --- encoders ---

# Magnitudes whose scale has a finite reciprocal; beyond, the oracle's codes are undefined.
SANE = st.floats(-3.0e4, 3.0e4, width=32).map(
    lambda v: np.float32(0) if 0 < abs(v) < 1e-30 else np.float32(v)
)


@pytest.mark.parametrize("fmt", ENCODED, ids=ids(ENCODED))
@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_encode_equals_gguf(fmt, data):
    k = fmt.block * data.draw(st.integers(1, 3))
    x = data.draw(hnp.arrays(np.float32, (2, k), elements=SANE))
    with np.errstate(all="ignore"):
        want = gguf.quants.quantize(x, GGMLQuantizationType(fmt.gguf_id))
    np.testing.assert_array_equal(fmt.encode(x), want.view(np.uint8).reshape(2, -1))


@pytest.mark.parametrize("fmt", ENCODED, ids=ids(ENCODED))
@pytest.mark.parametrize("scale", [1e-6, 0.02, 1.0, 3e4])
def test_encode_many_equals_gguf(fmt, scale):
    rng = np.random.default_rng(11)
    x = (rng.standard_normal((64, 1024)) * scale).astype(np.float32)
    x[:8] = np.rint(x[:8] * 4 / np.float32(scale))  # ties
    x[8] = 0
    with np.errstate(all="ignore"):
        want = gguf.quants.quantize(x, GGMLQuantizationType(fmt.gguf_id))
    np.testing.assert_array_equal(fmt.encode(x), want.view(np.uint8).reshape(64, -1))


@pytest.mark.parametrize("fmt", [f for f in ENCODED if f.quantised], ids=str)
def test_encode_at_the_ends(fmt):
    """Tiny groups come back as zero, huge ones as not finite; a NaN is refused."""
    tiny = np.full((1, 32), 1e-44, np.float32)
    tiny[0, ::2] = 0
    np.testing.assert_array_equal(fmt.decode(fmt.encode(tiny)), 0)
    huge = np.linspace(-3e38, 3e38, 32, dtype=np.float32)[None]
    assert not np.isfinite(fmt.decode(fmt.encode(huge))).all()
    for bad in (np.nan, np.inf, -np.inf):
        x = np.zeros((3, 64), np.float32)
        x[2, 33] = bad
        with pytest.raises(UsageError) as caught:
            fmt.encode(x)
        assert caught.value.code == "usage.quantise_nonfinite"


@pytest.mark.parametrize("fmt", [f for f in ENCODED if f.quantised], ids=str)
def test_round_trip_error(fmt):
    x = np.random.default_rng(2).standard_normal((16, 256)).astype(np.float32)
    err = np.abs(fmt.decode(fmt.encode(x)) - x).reshape(-1, 32).max(axis=1)
    span = np.abs(x).reshape(-1, 32).max(axis=1)
    codes = {"q4_0": 8, "q4_1": 7, "q5_0": 16, "q5_1": 15, "q8_0": 127}[fmt.name]
    assert (err <= span / codes * 1.01 + 2**-10 * span).all()


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_floats_encode_what_is_not_finite(name):
    fmt = FORMATS[name]
    x = np.array([[np.inf, -np.inf, 3.4e38, -0.0]], np.float32)
    got = fmt.decode(fmt.encode(x))
    assert got[0, 0] == np.inf and got[0, 1] == -np.inf and got[0, 2] == np.inf
    assert np.signbit(got[0, 3])
    assert np.isnan(fmt.decode(fmt.encode(np.full((1, 1), np.nan, np.float32)))).all()


def test_quant_arrays():
    raw = np.random.default_rng(1).integers(0, 256, (3, 2 * 20), np.uint8)
    w = QuantArray("q4_1", (3, 64), raw)
    assert_same_bits(w.decode(), oracle(raw, FORMATS["q4_1"]))
    assert w == w and w != QuantArray("q4_1", (3, 64), raw)  # identity, as arrays go
    for name, shape, code in (
        ("q4_9", (3, 64), "usage.format"),
        ("q4_1", (3, 96), "usage.format_shape"),
        ("q4_1", (2, 64), "usage.format_shape"),
        ("q4_1", (3, 40), "usage.format_shape"),
    ):
        with pytest.raises(UsageError) as caught:
            QuantArray(name, shape, raw)
        assert caught.value.code == code
    with pytest.raises(UsageError):
        QuantArray("q4_1", (3, 64), raw.view(np.int8))
    unknown = QuantArray("iq2_xxs", (1, 256), np.zeros((1, 66), np.uint8))
    with pytest.raises(UsageError) as caught:
        unknown.decode()
    assert caught.value.code == "usage.format"
