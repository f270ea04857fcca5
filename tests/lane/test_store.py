"""Programs on disk: what comes back is what went in, and nothing else comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanewise.ir.graph import Type
from lanewise.lane import store
from lanewise.plan.program import Buffer, Constant, FormEntry, KernelObject, Program
from lanewise.runtime import cache

PROGRAM = Program(
    text="// text\n\"é\"", identity="abc", target="cpu-avx2",
    objects=(KernelObject("a.cpp", ("LW_A=1", "LW_B"), ("lw_a",)),),
    buffers=(Buffer("w", "constant", 36, Type("q8_0", (1, 32))),
             Buffer("decode/tokens", "input", 4, Type("u32", (1,)))),
    constants=(Constant("w", Type("q8_0", (1, 32)), "panels", 36),),
    forms=(FormEntry("decode", "lw_form_decode", 1, (("tokens", 1),), ()),),
    scalars=(("rows", "u32"),), arena_bytes=1, private_bytes=2, scratch_bytes=3,
)  # fmt: skip


@pytest.fixture(autouse=True)
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANEWISE_CACHE_DIR", str(tmp_path))


def test_round_trip() -> None:
    key = store.key_of("spec", 1)
    assert store.load(key) is None
    store.save(key, PROGRAM)
    assert store.load(key) == PROGRAM


def test_keys_differ_by_every_part() -> None:
    assert len({store.key_of(*p) for p in (("a", 1), ("a", 2), ("b", 1), ("a",), ("a", "1"))}) == 5


def test_every_source_that_decides_a_program_is_in_the_key() -> None:
    home = Path(store.__file__).parents[1]
    assert all((home / part).exists() for part in store._DECIDES)


def test_damage_counts_as_absent() -> None:
    key = store.key_of("x")
    store.save(key, PROGRAM)
    path = cache.path_of("cpu/program", key, ".json")
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert store.load(key) is None
    path.write_bytes(whole[:50])
    assert store.load(key) is None
    cache.store(path, key, b'["not", "a", "program"]')  # sound, but no record
    assert store.load(key) is None
    cache.store(path, key, b"{")
    assert store.load(key) is None
