"""Large memory: alignment, zeros, life of views, and refusals before anything is touched."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np
import pytest

from lanewise.errors import RunError
from lanewise.runtime import cpus, memory
from lanewise.runtime.memory import HUGE, Block


def test_block() -> None:
    for nbytes in (0, 1, 4096, HUGE, 3 * HUGE + 5):
        block = Block(nbytes)
        assert block.address % HUGE == 0 and block.bytes.size == nbytes
        assert not block.bytes.any()
        block.bytes[:] = 7
        block.close()
    with pytest.raises(RunError) as e:
        _ = block.bytes
    assert e.value.code == "run.closed"


def test_views_outlive_close() -> None:
    block = Block(HUGE)
    view = block.view(np.float32, (4, 3), 64)
    assert view.ctypes.data == block.address + 64
    view[:] = 2.5
    assert block.bytes[64:112].view(np.float32).tolist() == [2.5] * 12
    block.close()
    assert view.sum() == 30.0  # still mapped: closing never pulls memory from under a view


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_memory_is_given_back() -> None:
    before = resident()
    block = Block(64 << 20)
    block.bytes[:] = 1
    assert resident() - before > 60 << 20
    block.close()
    assert resident() - before < 8 << 20


def test_refused_before_it_is_touched() -> None:
    with pytest.raises(RunError) as e:
        Block(1 << 50, "the weights")
    assert e.value.code == "run.memory"
    assert "the weights: 1048576.0 GiB needed" in e.value.message
    assert e.value.remedy


def test_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "meminfo"
    info.write_text("MemTotal: 16000 kB\nMemAvailable: 1000 kB\n")
    monkeypatch.setattr(memory, "MEMINFO", info)
    monkeypatch.setattr(cpus, "CGROUP_ROOT", tmp_path / "fs")
    monkeypatch.setattr(cpus, "SELF_CGROUP", tmp_path / "cgroup")
    assert memory.available() == 1000 * 1024
    inner = tmp_path / "fs" / "a"
    inner.mkdir(parents=True)
    (tmp_path / "cgroup").write_text("0::/a\n")
    (inner / "memory.max").write_text("max\n")
    (inner / "memory.current").write_text("5000\n")
    assert memory.available() == 1000 * 1024
    (inner / "memory.max").write_text("105000\n")
    assert memory.available() == 100000
    (inner / "memory.stat").write_text("anon 1\ninactive_file 300\nactive_file 50\n")
    assert memory.available() == 100350
    info.write_text("MemAvailable: 1 kB\n")
    assert memory.available() == 1024
    memory.require(1024, "this")
    with pytest.raises(RunError):
        memory.require(1025, "this")


@pytest.mark.skipif("glibc" not in platform.libc_ver()[0], reason="another C library")
def test_trim_gives_back_what_was_freed() -> None:
    """Blocks under the size that the C library maps, each second one freed."""
    blocks = [bytearray(60_000) for _ in range(800)]
    kept, full = blocks[::2], resident()
    del blocks
    freed = resident()
    memory.trim()
    assert sum(map(len, kept)) == 24_000_000
    assert full - resident() > 15 << 20 > full - freed
