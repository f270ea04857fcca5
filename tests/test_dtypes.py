"""The table of scalar types."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from lanewise.dtypes import DTYPES, dtype, extension, from_numpy, is_float
from lanewise.errors import UsageError


@pytest.mark.parametrize("name", DTYPES)
def test_rows_agree_with_numpy(name):
    row = dtype(name)
    assert str(row) == name and dtype(row) is row
    assert row.numpy.itemsize == row.itemsize
    assert from_numpy(row.numpy) is row
    assert extension(row.numpy) == (row.numpy.type.__module__ == "ml_dtypes")
    assert is_float(name) == (name in ("f64", "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2"))
    assert row.kind == {"f": "f", "b": "b", "i": "i", "u": "u"}[name[0] if name != "bf16" else "f"]


def test_bf16_is_the_upper_half_of_f32():
    assert dtype("bf16").numpy == np.dtype(ml_dtypes.bfloat16)
    ones = np.array([0x3F80], "<u2").view(dtype("bf16").numpy)
    assert float(ones[0]) == 1.0


@pytest.mark.parametrize("bad", [np.complex64, ">f4", "S3"])
def test_other_numpy_types_are_refused(bad):
    with pytest.raises(UsageError) as caught:
        from_numpy(bad)
    assert caught.value.code == "usage.dtype"


def test_other_names_are_refused():
    with pytest.raises(UsageError) as caught:
        dtype("float32")
    assert caught.value.code == "usage.dtype" and "f32" in caught.value.remedy
