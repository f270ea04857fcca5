"""Arrays in and out without a copy: NumPy, the buffer protocol, DLPack; bf16 by ml_dtypes."""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
import sys
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lanewise import tensor as t
from lanewise.errors import RunError
from lanewise.tensor.interop import _Tensor, from_dlpack
from tests.tensor.support import compile, f32, runtime

RNG = np.random.default_rng(1)


class Foreign:
    """Only DLPack, as another library's tensor; what it was asked for."""

    def __init__(self, value: np.ndarray) -> None:
        self.value = value
        self.asked: list[dict[str, Any]] = []

    def __dlpack__(self, **options: Any) -> Any:
        self.asked.append(options)
        return self.value.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class Old(Foreign):
    """A producer of before versions and `copy`."""

    def __dlpack__(self, stream: Any = None) -> Any:  # type: ignore[override]
        return self.value.__dlpack__()


class Copies(Foreign):
    """A producer that has to copy, and says so."""

    def __dlpack__(self, **options: Any) -> Any:
        if options.get("copy") is False:
            raise BufferError("this takes a copy")
        return self.value.copy().__dlpack__()


class Elsewhere(Foreign):
    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


class Managed(ctypes.Structure):
    """DLManagedTensor: what a bf16 producer gives, which NumPy cannot make."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class Bfloat:
    """A bf16 DLPack producer over a NumPy array, by hand; it gives one capsule."""

    def __init__(self, value: np.ndarray, strides: bool = False, code: int = 4) -> None:
        self.value = value
        shape = (ctypes.c_int64 * value.ndim)(*value.shape)
        steps = (ctypes.c_int64 * value.ndim)(*(s // 2 for s in value.strides))
        tensor = _Tensor(value.ctypes.data - 6, (1, 0), value.ndim, code, 16, 1, shape,
                         steps if strides else None, 6)  # fmt: skip
        self.kept = Managed(tensor, None, None), shape, steps
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
        self.capsule = new(ctypes.addressof(self.kept[0]), b"dltensor", None)

    def __dlpack__(self, **options: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


@pytest.fixture(scope="module")
def plan() -> Iterator[t.Plan]:
    def record(b: t.Builder) -> None:
        b.output("y", t.cast(b.input("x", t.bf16, (3, 4)), t.f32))
        b.output("z", t.neg(b.input("v", t.f32, (2, 2))))

    with compile(record) as made:
        yield made


def given(**more: Any) -> dict[str, Any]:
    return {"x": f32(RNG, 3, 4).astype(ml_dtypes.bfloat16), "y": np.zeros((3, 4), np.float32),
            "v": f32(RNG, 2, 2), "z": np.zeros((2, 2), np.float32), **more}  # fmt: skip


def test_every_kind_of_array_is_read_where_it_is(plan):
    values = f32(RNG, 2, 2)
    raw = bytearray(values.tobytes())
    flat = array.array("f", values.reshape(-1).tolist())
    mapped = mmap.mmap(-1, 16)
    mapped.write(values.tobytes())
    buffer = runtime().buffer(t.f32, (2, 2))
    buffer.array[...] = values
    kinds = {
        "numpy": values.copy(), "buffer": buffer, "dlpack": Foreign(values.copy()),
        "old dlpack": Old(values.copy()), "bytearray": memoryview(raw).cast("f", (2, 2)),
        "array": memoryview(flat).cast("B").cast("f", (2, 2)),
        "mmap": memoryview(mapped).cast("f", (2, 2)),
        "ctypes": ((ctypes.c_float * 2) * 2)(*map(tuple, values.tolist())),
    }  # fmt: skip
    for name, value in kinds.items():
        g = given(v=value)
        plan.run(g)
        assert (g["z"] == -values).all(), name
        if name not in ("old dlpack", "dlpack"):
            view = value.array if isinstance(value, t.Buffer) else np.asarray(value)
            view[0, 0] = 77  # what is bound is looked at anew by every run
            plan.run(g)
            assert g["z"][0, 0] == -77, name
    mapped_view = kinds.pop("mmap")
    mapped_view.release()


def test_outputs_are_written_where_they_are(plan):
    raw = bytearray(16)
    buffer = runtime().buffer(t.f32, (2, 2))
    target = np.zeros((2, 2), np.float32)
    for out, read in (
        (memoryview(raw).cast("f", (2, 2)), lambda: np.frombuffer(raw, np.float32)),
        (buffer, lambda: np.from_dlpack(buffer)), (buffer, lambda: np.asarray(buffer)),
        (Foreign(target), lambda: target), (Old(target), lambda: target),
    ):  # fmt: skip
        g = given(z=out)
        plan.run(g)
        assert (read().reshape(2, 2) == -g["v"]).all()
    with pytest.raises(RunError, match="is read-only"):
        plan.run(given(z=memoryview(bytes(16)).cast("f", (2, 2))))


def test_memory_of_a_producer_of_before_versions_lives_as_long_as_its_array():
    """NumPy marks what such a capsule lends read-only; it is to be written all the same."""
    value = Old(f32(RNG, 2, 2))
    before = sys.getrefcount(value.value)
    for _ in range(3):
        made = from_dlpack(value, written=True)
        assert made.flags.writeable and made.dtype == np.float32 and made.shape == (2, 2)
        assert np.shares_memory(made, value.value) and not from_dlpack(value).flags.writeable
        made[0, 0] = 5
        assert value.value[0, 0] == 5
        held = sys.getrefcount(value.value)  # not in the assertion: that holds one more
        assert held > before
        del made
        gc.collect()
    after = sys.getrefcount(value.value)
    assert after == before
    readonly = f32(RNG, 2, 2)
    readonly.flags.writeable = False
    assert not from_dlpack(Foreign(readonly), written=True).flags.writeable


def test_a_producer_is_asked_not_to_copy_and_one_that_must_is_refused(plan):
    value = Foreign(f32(RNG, 2, 2))
    plan.run(given(v=value))
    assert value.asked and value.asked[0]["copy"] is False
    assert np.shares_memory(from_dlpack(value), value.value)
    with pytest.raises(RunError, match="this takes a copy") as caught:
        plan.run(given(v=Copies(f32(RNG, 2, 2))))
    assert caught.value.code == "run.kind" and caught.value.place.startswith(__file__)


def test_another_device_is_refused_by_name(plan):
    with pytest.raises(RunError, match=r"device \(2, 0\)") as caught:
        plan.run(given(v=Elsewhere(f32(RNG, 2, 2))))
    assert caught.value.code == "run.device" and "x.cpu()" in caught.value.remedy


@pytest.mark.parametrize("strides", [False, True])
def test_bf16_comes_in_by_dlpack_too(plan, strides):
    x = f32(RNG, 3, 4).astype(ml_dtypes.bfloat16)
    value = Bfloat(x, strides)
    g = given(x=value)
    plan.run(g)
    assert (g["y"] == x.astype(np.float32)).all()
    x[0, 0] = 5
    plan.run(g)
    assert g["y"][0, 0] == 5
    assert np.shares_memory(from_dlpack(value, True), x)
    # columns first: seen as such, and refused
    with pytest.raises(RunError, match=r"run.strides"):
        turned = np.asfortranarray(x)
        plan.run(given(x=Bfloat(turned, True)))
    with pytest.raises(RunError, match=r"run.kind"):  # another dtype that NumPy does not know
        plan.run(given(x=Bfloat(x, strides, code=99)))


def test_a_capsule_lives_as_long_as_its_array():
    x = np.arange(12).reshape(3, 4).astype(ml_dtypes.bfloat16)
    value = Bfloat(x)
    before = sys.getrefcount(value.capsule)
    made = from_dlpack(value, True)
    part = made[1:]
    del made
    gc.collect()
    held = sys.getrefcount(value.capsule)  # not in the assertion: that holds one more
    assert held == before + 1
    assert (part.astype(np.float32) == np.arange(4, 12).reshape(2, 4)).all()
    del part
    gc.collect()
    held = sys.getrefcount(value.capsule)
    assert held == before


def test_a_buffer_gives_itself_out():
    buffer = runtime().buffer(t.f32, (2, 3))
    assert buffer.array.ctypes.data % 64 == 0 and (buffer.array == 0).all()
    for view in (np.asarray(buffer), np.asarray(buffer, copy=False), np.from_dlpack(buffer),
                 np.from_dlpack(buffer, copy=False), np.array(buffer, copy=False)):  # fmt: skip
        assert np.shares_memory(view, buffer.array)
    assert not np.shares_memory(np.array(buffer, copy=True), buffer.array)
    assert np.asarray(buffer, np.float64).dtype == np.float64
    assert memoryview(buffer.array).nbytes == 24  # what the docstring names for 3.11
    with pytest.raises(RunError, match=r"run.copy") as caught:
        np.asarray(buffer, np.float64, copy=False)
    assert "copy=False" in caught.value.remedy
    if sys.version_info >= (3, 12):
        memoryview(buffer).cast("B")[0] = 1  # type: ignore[arg-type]
        assert buffer.array[0, 0] != 0
    with runtime().buffer(t.bf16, (4,)) as half:
        half.array[...] = 1.5
        assert np.asarray(half).dtype == ml_dtypes.bfloat16
    assert half.closed


def test_f8_at_a_port_of_f32_is_refused_with_what_widens_it(plan):
    x = f32(RNG, 2, 2)
    for name in ("float8_e4m3fn", "float8_e5m2"):
        small = x.astype(getattr(ml_dtypes, name))
        with pytest.raises(RunError, match=f"is {name}") as caught:
            plan.run(given(v=small))
        assert caught.value.code == "run.dtype" and "x.astype('float32')" in caught.value.remedy
        g = given(v=small.astype("float32"))
        plan.run(g)
        assert (g["z"] == -small.astype(np.float32)).all()
