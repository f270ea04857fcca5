"""DLPack capsules of dtypes that NumPy has none for: what is in them, whose memory it is and until
when; and the same read back.  A consumer of C is played by ctypes."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lanewise import tensor as t
from lanewise.errors import RunError
from lanewise.tensor.interop import CODES, _opened, _Tensor, _Versioned, from_dlpack
from tests.tensor.support import compile, runtime

KINDS = {"bf16": (ml_dtypes.bfloat16, 4, 16), "f8_e4m3": (ml_dtypes.float8_e4m3fn, 10, 8),
         "f8_e5m2": (ml_dtypes.float8_e5m2, 12, 8)}  # fmt: skip
NAMES = pytest.mark.parametrize("name", KINDS)
VERSIONS = pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 1), (1, 9)])
USED = {b"dltensor": b"used_dltensor", b"dltensor_versioned": b"used_dltensor_versioned"}
VALUES = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14], np.float32).reshape(3, 4)
DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


def filled(name: str) -> t.Buffer:
    buffer = runtime().buffer(name, (3, 4))
    buffer.array[...] = VALUES
    return buffer


def owner(array: np.ndarray) -> np.ndarray:
    """The array that has the memory: while it lives, the memory does."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def options(version: Any, **more: Any) -> dict[str, Any]:
    return more if version is None else {"max_version": version, **more}


class Consumer:
    """Takes a capsule over, as a library of C does: renames it, and calls its deleter once."""

    def __init__(self, capsule: Any) -> None:
        name = ctypes.pythonapi.PyCapsule_GetName
        name.restype, name.argtypes = ctypes.c_char_p, (ctypes.py_object,)
        rename = ctypes.pythonapi.PyCapsule_SetName
        rename.argtypes = (ctypes.py_object, ctypes.c_char_p)
        self.name = name(capsule)
        kind = _Versioned if self.name == b"dltensor_versioned" else Managed
        tensor, _ = _opened(capsule)
        self.managed = kind.from_address(ctypes.addressof(tensor) - kind.tensor.offset)
        assert rename(capsule, USED[self.name]) == 0

    def values(self, size: int) -> bytes:
        tensor = self.managed.tensor
        return ctypes.string_at(tensor.data + tensor.byte_offset, size)

    def free(self) -> None:
        DELETER(self.managed.deleter)(ctypes.addressof(self.managed))


@NAMES
@VERSIONS
def test_what_a_capsule_says(name: str, version: Any) -> None:
    kind, code, bits = KINDS[name]
    buffer = filled(name)
    capsule = buffer.__dlpack__(**options(version))
    tensor, versioned = _opened(capsule)
    assert buffer.array.dtype == kind and CODES[np.dtype(kind).name] == code
    assert (tensor.code, tensor.bits, tensor.lanes) == (code, bits, 1)
    assert tuple(tensor.device) == (1, 0) == buffer.__dlpack_device__()
    assert [tensor.shape[i] for i in range(tensor.ndim)] == [3, 4]
    assert [tensor.strides[i] for i in range(2)] == [4, 1]
    assert tensor.data + tensor.byte_offset == buffer.array.ctypes.data
    assert (versioned is not None) == (version is not None and version >= (1, 0))
    if versioned is not None:  # 8-bit floats came with 1.1
        assert (versioned.major, versioned.flags) == (1, 0) and versioned.minor >= 1


@NAMES
@VERSIONS
def test_memory_lives_until_the_consumer_lets_it_go(name: str, version: Any) -> None:
    buffer = filled(name)
    memory, raw = weakref.ref(owner(buffer.array)), buffer.array.tobytes()
    taken = Consumer(buffer.__dlpack__(**options(version)))
    buffer.close()
    del buffer
    gc.collect()
    assert memory() is not None and taken.values(len(raw)) == raw
    taken.free()
    gc.collect()
    assert memory() is None


@NAMES
@VERSIONS
def test_a_capsule_that_nobody_takes_lets_go_itself(name: str, version: Any) -> None:
    buffer = filled(name)
    held = owner(buffer.array)
    memory, before = weakref.ref(held), sys.getrefcount(held)
    for _ in range(100):
        buffer.__dlpack__(**options(version))
        with pytest.raises(ZeroDivisionError):  # one that goes while an exception is on its way
            _lost = [buffer.__dlpack__(**options(version)), 1 / 0]
    gc.collect()
    after = sys.getrefcount(held)
    assert after == before
    capsule = buffer.__dlpack__(**options(version))
    buffer.close()
    del held
    gc.collect()
    assert memory() is not None
    del capsule
    gc.collect()
    assert memory() is None


@NAMES
@pytest.mark.parametrize("version", [None, (1, 1)])
def test_copies_are_asked_for(name: str, version: Any) -> None:
    buffer = filled(name)
    same = _opened(kept := buffer.__dlpack__(**options(version, copy=False)))[0]
    other, flags = _opened(copied := buffer.__dlpack__(**options(version, copy=True)))
    assert same.data == buffer.array.ctypes.data != other.data
    assert other.code == same.code
    assert flags is None or flags.flags & 2
    taken, raw = Consumer(copied), buffer.array.tobytes()
    buffer.array[...] = 0
    assert taken.values(len(raw)) == raw
    taken.free()
    del kept


@NAMES
def test_what_cannot_be_given_is_refused(name: str) -> None:
    buffer = filled(name)
    assert buffer.__dlpack__(dl_device=(1, 0), stream=None)
    for wrong in ({"dl_device": (2, 0)}, {"stream": 1}):
        with pytest.raises(RunError, match=r"run\.dlpack") as caught:
            buffer.__dlpack__(**wrong)
        assert isinstance(caught.value, BufferError)  # what consumers look for
        assert caught.value.place.startswith(__file__) and "processor" in caught.value.remedy
    with pytest.raises(RunError, match=r"run\.buffer") as caught:
        buffer.__buffer__(0)
    assert isinstance(caught.value, BufferError)
    said = caught.value.remedy.removeprefix("its bits: ").partition(";")[0]
    assert memoryview(eval(said, {"buffer": buffer})).nbytes == buffer.array.nbytes
    buffer.close()
    for call in (buffer.__dlpack__, lambda: buffer.__buffer__(0)):
        with pytest.raises(RunError, match=r"run\.closed"):
            call()


class Foreign:
    """Another library's tensor of a buffer's memory; what it is asked for."""

    def __init__(self, name: str, **forced: Any) -> None:
        self.buffer, self.forced, self.asked = filled(name), forced, list[dict[str, Any]]()

    def __dlpack__(self, **options: Any) -> Any:
        self.asked.append(options)
        return self.buffer.__dlpack__(**(options | self.forced))

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class Old(Foreign):
    """A producer of before versions and `copy`."""

    def __dlpack__(self, stream: Any = None) -> Any:  # type: ignore[override]
        return self.buffer.__dlpack__()


class Locked(Foreign):
    """A producer of what may not be written."""

    def __dlpack__(self, **options: Any) -> Any:
        capsule = super().__dlpack__(**options)
        versioned = _opened(capsule)[1]
        assert versioned is not None
        versioned.flags |= 1
        return capsule


@NAMES
@pytest.mark.parametrize("kind", [Foreign, Old])
def test_a_capsule_is_read_where_its_memory_is(name: str, kind: Any) -> None:
    value = kind(name)
    made = from_dlpack(value, True)
    assert made.dtype == KINDS[name][0] and np.shares_memory(made, value.buffer.array)
    assert (made.astype(np.float32) == VALUES).all()
    assert all(asked["copy"] is False for asked in value.asked)
    memory = weakref.ref(owner(value.buffer.array))
    value.buffer.close()
    part = made[1:]
    del made
    gc.collect()
    assert memory() is not None and (part.astype(np.float32)[0] == [4, 5, 6, 7]).all()
    del part
    gc.collect()
    assert memory() is None


@NAMES
def test_a_plan_reads_and_writes_them(name: str) -> None:
    def record(b: t.Builder) -> None:
        x = b.input("x", name, (3, 4))
        b.output("wide", t.cast(x, "f32"))
        b.output("twice", t.cast(t.cast(x, "f32") * b.constant(2.0), name))

    with compile(record) as plan:
        wide, twice = np.zeros((3, 4), np.float32), Foreign(name)
        plan.run(x=Foreign(name), wide=wide, twice=twice)
        assert (wide == VALUES).all()
        assert (twice.buffer.array.astype(np.float32) == 2 * wide).all()
        with pytest.raises(RunError, match="producer made a copy") as caught:
            plan.run(x=Foreign(name, copy=True), wide=wide, twice=twice)
        assert caught.value.code == "run.kind"
        plan.run(x=Locked(name), wide=wide, twice=twice)
        with pytest.raises(RunError, match="read-only") as caught:
            plan.run(x=Foreign(name), wide=wide, twice=Locked(name))
        assert caught.value.code == "run.readonly"
        other = "bf16" if name != "bf16" else "f8_e5m2"
        with pytest.raises(RunError, match=f"is {np.dtype(KINDS[other][0]).name}") as caught:
            plan.run(x=Foreign(other), wide=wide, twice=twice)
        assert caught.value.code == "run.dtype"
    with compile(lambda b: b.output("y", t.neg(b.input("x", t.f32, (3, 4))))) as plan:
        with pytest.raises(RunError, match=f"is {np.dtype(KINDS[name][0]).name}, it") as caught:
            plan.run(x=Foreign(name), y=wide)
        assert caught.value.code == "run.dtype"
