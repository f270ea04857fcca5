"""The sidecar: whole or not at all, for its key only, damage noticed, disk space taken first."""

from __future__ import annotations

import ctypes
import errno
import multiprocessing
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from lanewise.checkpoint import sidecar as module
from lanewise.checkpoint.sidecar import Sidecar, SidecarWriter
from lanewise.errors import BuildError

KEY = "model 1, packer 2"
SIZES = {"none": 0, "one": 1, "odd": 4097, "word": 64, "piece": 1 << 20, "over": (1 << 20) + 5,
         "large": (2 << 20) + 1, "larger": (5 << 20) + 123}  # fmt: skip


def contents(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.integers(0, 256, size, np.uint8) for name, size in SIZES.items()}


def write(path: Path, key: str = KEY, seed: int = 0) -> None:
    with SidecarWriter(path, key) as writer:
        for name, data in contents(seed).items():
            writer.put(name, data)
        writer.commit().close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache" / "weights.lws"


def opened(path: Path, key: str = KEY) -> Sidecar:
    found = Sidecar.open(path, key)
    assert found is not None
    return found


def read(sidecar: Sidecar, **options) -> dict[str, np.ndarray]:
    out = {name: np.zeros(blob.nbytes, np.uint8) for name, blob in sidecar.items()}
    sidecar.read_all(out, **options)
    return out


def assert_equal(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    assert got.keys() == want.keys()
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("verify", [True, False])
def test_round_trip(path, threads, verify):
    write(path)
    with opened(path) as sidecar:
        assert list(sidecar) == list(SIZES) and len(sidecar) == len(SIZES)
        assert sidecar.size == path.stat().st_size
        assert_equal(read(sidecar, threads=threads, verify=verify), contents())
        for name, data in contents().items():
            mapped = sidecar.map(name, verify=verify)
            assert not mapped.flags.writeable
            np.testing.assert_array_equal(mapped, data)
            out = np.zeros(len(data), np.uint8)
            sidecar.read_into(name, out, threads=threads)
            np.testing.assert_array_equal(out, data)


def test_what_commit_returns_is_open(path):
    with SidecarWriter(path, KEY) as writer:
        writer.put("floats", np.arange(6, dtype=np.float32).reshape(2, 3))
        writer.put("bytes", b"abc")
        with writer.commit() as sidecar:
            out = np.empty((2, 3), np.float32)
            sidecar.read_into("floats", out)
            assert out.tolist() == [[0, 1, 2], [3, 4, 5]]
            assert sidecar.map("bytes").tobytes() == b"abc"
    assert path.exists() and opened(path)["bytes"].nbytes == 3


def test_alignment(path):
    write(path)
    ends = 0
    with opened(path) as sidecar:
        for name, blob in sidecar.items():
            assert blob.offset % (4096 if blob.nbytes > 2 << 20 else 64) == 0
            assert blob.offset >= ends and blob.offset >= 4096
            ends = blob.offset + blob.nbytes
            if blob.nbytes:
                assert sidecar.map(name).ctypes.data % 64 == 0
        assert ends < sidecar.size < sum(SIZES.values()) + (64 << 10)


def test_pieces_in_any_order_from_any_thread(path):
    """Each name in pieces of 1 to 3 MiB, backwards, two threads."""
    with SidecarWriter(path, KEY) as writer:
        rooms = {name: writer.reserve(name, size) for name, size in SIZES.items()}
        jobs = []
        for i, (name, data) in enumerate(contents().items()):
            step = (1 + i % 3) << 20
            jobs += [(rooms[name], at, data[at : at + step]) for at in range(0, len(data), step)]
        with ThreadPoolExecutor(2) as workers:
            list(workers.map(lambda job: job[0].write(*job[1:]), reversed(jobs)))
        writer.commit().close()
    with opened(path) as sidecar:
        assert_equal(read(sidecar), contents())


def test_what_was_not_written_is_not_kept(path):
    with SidecarWriter(path, KEY) as writer:
        writer.reserve("a", (1 << 20) + 5).write(1 << 20, b"12345")
        with pytest.raises(ValueError, match="1 pieces"):
            writer.commit()
    assert nothing_left(path)
    with SidecarWriter(path, KEY) as writer:
        room = writer.reserve("a", (2 << 20) + 5)
        for at, size in ((1, 4), (0, 100), (0, (2 << 20) + 6), (-(1 << 20), 1 << 20), (1 << 20, 7)):
            with pytest.raises(ValueError):
                room.write(at, bytes(size))
    assert nothing_left(path)


def test_many_blobs_cost_few_descriptors(path):
    with SidecarWriter(path, KEY) as writer:
        before = len(os.listdir("/proc/self/fd"))
        for i in range(3000):
            writer.put(str(i), i.to_bytes(4, "little"))
        assert len(os.listdir("/proc/self/fd")) <= before + 2
        with writer.commit() as sidecar:
            out = {str(i): bytearray(4) for i in range(3000)}
            sidecar.read_all(out, threads=2)
            assert all(int.from_bytes(out[str(i)], "little") == i for i in range(3000))


def test_kinds_of_buffers(path):
    write(path)
    with opened(path) as sidecar:
        want = contents()["odd"].tobytes()
        for out in (bytearray(4097), (ctypes.c_ubyte * 4097)(), memoryview(bytearray(4097))):
            sidecar.read_into("odd", out)
            assert bytes(out) == want
        for bad in (bytearray(4096), bytes(4097), np.zeros((4097, 2), np.uint8)):
            with pytest.raises(ValueError):
                sidecar.read_into("odd", bad)
        with pytest.raises(KeyError):
            sidecar.read_into("nothing", bytearray(1))


# --- not found, stale, damaged ---


def test_missing_stale_or_no_file(path, tmp_path):
    assert Sidecar.open(path, KEY) is None
    assert Sidecar.open(tmp_path, KEY) is None
    write(path)
    assert Sidecar.open(path, KEY + "!") is None
    os.mkfifo(tmp_path / "pipe")
    assert Sidecar.open(tmp_path / "pipe", KEY) is None


def test_another_version(path, monkeypatch):
    write(path)
    monkeypatch.setattr(module, "VERSION", module.VERSION + 1)
    assert Sidecar.open(path, KEY) is None


def test_every_truncation_and_growth_is_stale(path):
    write(path)
    whole = path.read_bytes()
    for cut in [0, 1, 50, 75, 76, 77, 4096, *np.linspace(80, len(whole) - 1, 30).astype(int)]:
        path.write_bytes(whole[:cut])
        assert Sidecar.open(path, KEY) is None, cut
    path.write_bytes(whole + b"\0")
    assert Sidecar.open(path, KEY) is None


def test_every_flip_in_header_or_table_is_stale(path):
    write(path)
    whole = path.read_bytes()
    with opened(path) as sidecar:
        table = max(blob.offset + blob.nbytes for blob in sidecar.values())
    places = [*range(76), *range(table, len(whole))]
    for i, at in enumerate(places):
        with path.open("r+b") as file:
            file.seek(at)
            file.write(bytes([whole[at] ^ (1 << (i % 8))]))
        assert Sidecar.open(path, KEY) is None, at
        with path.open("r+b") as file:
            file.seek(at)
            file.write(whole[at : at + 1])
    opened(path).close()


@pytest.mark.parametrize("name", [n for n, size in SIZES.items() if size])
def test_damaged_blobs_are_noticed(path, name):
    write(path)
    rng = np.random.default_rng(SIZES[name])
    with opened(path) as sidecar:
        blob = sidecar[name]
    for kind in ("flip", "zero page"):
        write(path)
        with path.open("r+b") as file:
            at = int(rng.integers(blob.nbytes))
            if kind == "flip":
                file.seek(blob.offset + at)
                byte = file.read(1)[0] ^ (1 << int(rng.integers(8)))
                file.seek(blob.offset + at)
                file.write(bytes([byte]))
            else:
                file.seek(blob.offset + at // 4096 * 4096)
                file.write(bytes(min(4096, blob.nbytes - at // 4096 * 4096)))
        with opened(path) as sidecar:
            for threads in (1, 3):
                with pytest.raises(BuildError) as caught:
                    read(sidecar, threads=threads)
                assert caught.value.code == "build.sidecar_damaged" and name in str(caught.value)
            with pytest.raises(BuildError):
                sidecar.map(name, verify=True)
            read(sidecar, verify=False)  # not asked to look
            others = {n: np.empty(b.nbytes, np.uint8) for n, b in sidecar.items() if n != name}
            sidecar.read_all(others)


def test_pages_in_another_order_are_noticed(path):
    write(path)
    with opened(path) as sidecar:
        at = sidecar["larger"].offset
    data = bytearray(path.read_bytes())
    data[at : at + 8192] = data[at + 4096 : at + 8192] + data[at : at + 4096]
    path.write_bytes(data)
    with opened(path) as sidecar, pytest.raises(BuildError):
        read(sidecar)


def test_a_file_cut_short_while_open(path):
    write(path)
    with opened(path) as sidecar:
        os.truncate(path, 5000)
        with pytest.raises(BuildError) as caught:
            read(sidecar)
        assert caught.value.code == "build.sidecar_damaged"


# --- writing: failures leave nothing ---


def nothing_left(path: Path) -> bool:
    return not list(path.parent.iterdir())


def test_without_commit_nothing_stays(path):
    with SidecarWriter(path, KEY) as writer:
        writer.reserve("a", 100)
    assert nothing_left(path)
    with pytest.raises(ZeroDivisionError), SidecarWriter(path, KEY) as writer:
        writer.put("a", bytes(1 // 0))
    assert nothing_left(path)
    writer = SidecarWriter(path, KEY)
    writer.abort()
    writer.abort()
    assert nothing_left(path)


def test_names_are_taken_once(path):
    with SidecarWriter(path, KEY) as writer:
        writer.reserve("a", 1)
        with pytest.raises(ValueError):
            writer.reserve("a", 1)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk(path, monkeypatch, number):
    def full(fd: int, data: bytes, at: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(BuildError) as caught, SidecarWriter(path, KEY, 98_300_000) as writer:
        writer.put("a", bytes(1 << 20))
    assert caught.value.code == "build.disk_full" and "LANEWISE_CACHE_DIR" in caught.value.remedy
    assert re.search(r"98\.3 MB are needed, [\d,.]+ MB are free", caught.value.message)
    assert caught.value.place == str(path.parent)
    assert nothing_left(path)


def test_a_disk_that_fills_at_the_end(path, monkeypatch):
    with pytest.raises(BuildError) as caught, SidecarWriter(path, KEY) as writer:
        writer.put("a", b"abc")

        def full(fd: int, data: bytes, at: int) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "pwrite", full)
        writer.commit()
    assert caught.value.code == "build.disk_full"
    assert nothing_left(path)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a small file system")
def test_a_limit_on_file_size(path):
    """A real refusal of the system: the file may not grow."""
    import resource
    import signal

    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, old[1]))
        with pytest.raises(BuildError) as caught, SidecarWriter(path, KEY) as writer:
            writer.put("a", bytes(2 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    assert caught.value.code == "build.file_size" and "ulimit -f" in caught.value.remedy
    assert "a file of 2.1 MB is larger" in caught.value.message
    assert nothing_left(path)


def test_without_preadv(path, monkeypatch):
    monkeypatch.delattr(os, "preadv")
    write(path)
    with opened(path) as sidecar:
        assert_equal(read(sidecar), contents())


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BuildError) as caught:
        SidecarWriter(tmp_path / "file" / "x.lws", KEY)
    assert caught.value.code == "build.cache_unwritable"
    assert caught.value.place == str(tmp_path / "file") and "Errno" not in str(caught.value)
    assert "LANEWISE_CACHE_DIR" in caught.value.remedy


def test_an_older_file_is_replaced_and_readers_keep_theirs(path):
    write(path, seed=1)
    with opened(path) as old:
        write(path, seed=2)
        assert_equal(read(old), contents(1))
    with opened(path) as new:
        assert_equal(read(new), contents(2))


def test_debris_is_swept_and_living_writers_are_not(path):
    path.parent.mkdir()
    dead, fresh = (path.with_name(f".{path.name}.{n}.tmp") for n in ("dead", "fresh"))
    for file in (dead, fresh):
        file.write_bytes(b"x")
    other = path.with_name(".other.lws.dead.tmp")
    other.write_bytes(b"x")
    with SidecarWriter(path, KEY) as living:
        for file in path.parent.glob(".*.tmp"):
            if file != fresh:
                os.utime(file, (time.time() - 3600,) * 2)
        write(path)
        assert not dead.exists() and fresh.exists() and other.exists()
        living.put("a", b"b")
        living.commit().close()
    assert list(opened(path)) == ["a"]


def _write_many(path: Path, seed: int) -> None:
    for _ in range(5):
        write(path, seed=seed)


def test_processes_at_once(path):
    """Whatever is found while four processes write is whole and of one of them."""
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(path, 3)) for _ in range(3)]
    for writer in writers:
        writer.start()
    seen = 0
    while any(writer.is_alive() for writer in writers):
        sidecar = Sidecar.open(path, KEY)
        if sidecar is not None:
            with sidecar:
                assert_equal(read(sidecar), contents(3))
            seen += 1
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert seen and [p.name for p in path.parent.iterdir()] == [path.name]


def test_threads_end_with_the_call(path):
    write(path)
    before = threading.active_count()
    with opened(path) as sidecar:
        read(sidecar, threads=4)
    assert threading.active_count() == before
