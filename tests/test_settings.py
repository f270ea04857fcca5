"""The table of knobs: who wins, what is refused, where the cache lies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lanewise import settings
from lanewise.errors import BuildError, UsageError


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in settings.SETTINGS:
        monkeypatch.delenv(row.env, raising=False)


def test_table_is_sorted_unique_and_its_defaults_are_values() -> None:
    names = [row.name for row in settings.SETTINGS]
    assert names == sorted(set(names))
    assert len({row.env for row in settings.SETTINGS}) == len(names)
    for row in settings.SETTINGS:
        assert row.env == "LANEWISE_" + row.name.upper()
        assert row.doc and settings.get(row.name) == row.default
        if row.type not in settings.PARSERS:
            assert row.default in row.type.split("|")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("threads", "3", 3),
        ("threads", " 0 ", 0),
        ("offline", "Yes", True),
        ("offline", "0", False),
        ("activations", "INT8", "int8"),
        ("kv", "f32", "f32"),
        ("hold", "rope_write, head_argmax,rope_write", ("rope_write", "head_argmax")),
        ("max_chunk", "64", 64),
        ("cxx", "clang++ ", "clang++"),
        ("isa", "scalar", "scalar"),
        ("weights_in", "map", "map"),
    ],
)
def test_environment_is_read(
    name: str, text: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANEWISE_" + name.upper(), text)
    assert settings.get(name) == value
    assert settings.resolve(name) == value
    assert settings.parse(name, text) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("threads", "-1"),
        ("threads", "many"),
        ("threads", "1023"),
        ("threads", str(2**40)),
        ("max_chunk", "48"),
        ("max_chunk", "0"),
        ("offline", "perhaps"),
        ("activations", "int4"),
        ("kv", "q4_0"),
        ("isa", "mmx"),
    ],
)
def test_bad_values_are_refused_by_name(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = "LANEWISE_" + name.upper()
    monkeypatch.setenv(env, text)
    with pytest.raises(UsageError) as caught:
        settings.get(name)
    assert caught.value.code == "usage.setting"
    assert caught.value.place == env and text in caught.value.message and caught.value.remedy


def test_explicit_values_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANEWISE_THREADS", "7")
    assert settings.resolve("threads", 2) == 2
    assert settings.resolve("threads", "5") == 5
    monkeypatch.setenv("LANEWISE_THREADS", "")
    assert settings.get("threads") == 0


def test_unknown_setting_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="activations"):
        settings.get("thread")


def test_cache_dir_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANEWISE_CACHE_DIR", str(tmp_path / "a" / "b"))
    assert settings.cache_dir() == tmp_path / "a" / "b"
    assert (tmp_path / "a" / "b").is_dir()


def test_cache_path_makes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANEWISE_CACHE_DIR", str(tmp_path / "a"))
    assert settings.cache_path() == tmp_path / "a"
    assert not (tmp_path / "a").exists()


def test_default_cache_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    assert settings.cache_dir().name in {"lanewise", "Cache"}
    assert tmp_path in settings.cache_dir().parents


def test_cache_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LANEWISE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(BuildError) as caught:
        settings.cache_dir()
    assert caught.value.code == "build.cache" and "LANEWISE_CACHE_DIR" in caught.value.remedy


def test_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANEWISE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    with pytest.raises(BuildError, match="cannot be written"):
        settings.cache_dir()
