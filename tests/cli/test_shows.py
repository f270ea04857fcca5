"""inspect, plan, pull, list, cache, doctor: what they show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lanewise.checkpoint.source import TensorInfo
from lanewise.cli import common
from lanewise.cli.tables import printable, seconds, size
from lanewise.lane.spec import ModelInfo, ModelSpec, Rope
from tests.cli import fake


@pytest.fixture
def info(monkeypatch):
    spec = ModelSpec(
        "llama", "tiny", 2, 64, 128, 4, 2, 16, 100, 2048, 1e-5, 0.25,
        Rope("half", 10000.0, 16), True,
    )  # fmt: skip
    tensors = (
        TensorInfo("token_embd.weight", "q8_0", (100, 64), 0, 6800),
        TensorInfo("out\x1b[2J", "f32", (64,), 6848, 256),
    )
    metadata = {"general.name": "evil \x1b[31m name", "tokens": ["a"] * 1000, "eps": float("nan")}
    value = ModelInfo("m.gguf", "llama", metadata, tensors, spec, unused=("x",))
    assert repr(value).startswith("<ModelInfo m.gguf: llama, ") and len(repr(value)) < 100
    monkeypatch.setattr(common, "inspect_model", lambda *_: value)
    return value


def test_inspect(call, info):
    text = call("inspect", "m.gguf", "--tensors").stdout
    assert "evil \\x1b[31m name" in text and "\x1b" not in text
    assert "(1,000)" in text
    assert "100 x 64" in text and "q8_0" in text and "6.8 kB" in text
    assert "parameters  6,464" in text
    assert f"{size(info.memory(2048))} for 2,048 positions with f16" in text
    assert "unused" in text
    less = call("inspect", "m.gguf", "-c", "64", "--kv", "f32").stdout
    assert f"{size(info.memory(64, 'f32'))} for 64 positions with f32" in less
    assert "100 x 64" not in less


def test_inspect_json(call, info):
    record = json.loads(call("inspect", "m.gguf", "--json").stdout)
    assert record["parameters"] == 6464 and record["bytes"] == 7056
    assert record["memory"] == info.memory(2048) and record["context"] == 2048
    assert record["formats"]["q8_0"] == {"tensors": 1, "bytes": 6800}
    assert record["metadata"]["tokens"] == {"length": 1000, "first": ["a"] * 8}
    assert record["metadata"]["eps"] == "nan" and record["spec"]["heads"] == 4
    assert record["tensors"][0]["shape"] == [100, 64]


def test_inspect_of_what_we_do_not_run(call, info, monkeypatch):
    problem = "we do not run 'odd'\n  remedy: take another"
    refused = ModelInfo("m", "odd", {}, (), None, problem)
    monkeypatch.setattr(common, "inspect_model", lambda *_: refused)
    lines = call("inspect", "m").stdout.splitlines()
    assert lines[-2] == "runs here   no: we do not run 'odd'"
    assert lines[-1].strip() == "remedy: take another"
    assert json.loads(call("inspect", "m", "--json").stdout)["runs"] is False


def test_plan(call):
    text = call("plan", "fake").stdout
    assert text.startswith("program abc123\nrows 1 at most\n")
    assert fake.a_plan().explain() in text
    assert "tuning: prefetch 1024 bytes ahead; chosen by measurement:\n" in text
    assert "1024 bytes ahead" in text.splitlines()[-1] and "10.000 ms" in text.splitlines()[-1]
    assert "rows 512 at most" in call("plan", "fake", "--form", "prefill").stdout
    assert call("plan", "fake", "--source", "--form", "prefill").stdout == "graph prefill\n"
    assert call("plan", "fake", "--program").stdout == "// the program\n"
    record = json.loads(call("plan", "fake", "--json").stdout)
    assert record["launches"] == [] and record["barriers"] == 0
    assert record["memory"]["allocated"] == 192 and record["rules"]["fired"] == {"chain": 2}
    assert record["form"] == "decode" and record["identity"] == "abc123"
    assert record["tuning"]["tuning"] == {"ahead": 1024, "units": 0, "chunk": 0}


def test_pull(call, monkeypatch, tmp_path):
    import lanewise

    path = tmp_path / "m.gguf"
    path.write_bytes(b"x" * 10)
    asked = []

    def pull(name, offline=None, progress=None):
        asked.append((name, offline))
        return path

    monkeypatch.setattr(lanewise, "pull", pull, raising=False)
    assert call("pull", "smollm2").stdout == f"{path}\n"
    record = json.loads(call("pull", "smollm2", "--offline", "--json").stdout)
    assert record == {"model": "smollm2", "path": str(path), "bytes": 10}
    assert asked == [("smollm2", None), ("smollm2", True)]


def test_list(call):
    rows = json.loads(call("list", "--json").stdout)["models"]
    assert rows[0]["name"] == "smollm2" and rows[0]["path"] is None and rows[0]["bytes"] > 9e7
    assert call("list").stdout.splitlines()[1].split()[:4] == ["smollm2", "98.4", "MB", "no"]


def test_cache(call, tmp_path):
    top = tmp_path / "cache"
    for name, count in (("cpu/lib/a", 3000), ("cpu/b", 5), ("models/m", 7), ("chat_history", 1)):
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(count))
    record = json.loads(call("cache", "ls", "--json").stdout)
    assert record["bytes"] == 3013 and record["path"] == str(top)
    assert record["kinds"] == {"cpu": [2, 3005], "models": [1, 7]}
    lines = [line.split() for line in call("cache", "ls").stdout.splitlines()]
    assert ["cpu", "2", "3.0", "kB"] in lines and ["in", "all", "4", "3.0", "kB"] in lines
    assert "cpu/lib/a" in call("cache", "ls", "--files").stdout
    assert call("cache", "clear", "cpu").stdout == "freed 3.0 kB\n"
    assert not (top / "cpu").exists() and (top / "models").exists()
    assert json.loads(call("cache", "clear", "--json").stdout) == {"freed": 7}
    assert (top / "chat_history").exists()


def test_doctor(call, monkeypatch):
    from lanewise.runtime import doctor

    rows = [doctor.Row("cpu", "v"), doctor.Row("compiler", "none\x1b", False, "install it")]
    monkeypatch.setattr(doctor, "rows", lambda: rows)
    result = call("doctor")
    assert result.exit_code == 1
    assert result.stdout == (
        "cpu       v\ncompiler  FAILED: none\\x1b\n          remedy: install it\n"
    )
    record = json.loads(call("doctor", "--json").stdout)
    assert record["ok"] is False and record["rows"][1]["remedy"] == "install it"
    monkeypatch.setattr(doctor, "rows", lambda: rows[:1])
    assert call("doctor").exit_code == 0


def test_words():
    assert [size(n) for n in (0, 999, 1000, 92_400_000, 1.5e9)] == [
        "0 B", "999 B", "1.0 kB", "92.4 MB", "1.5 GB",
    ]  # fmt: skip
    assert [seconds(s) for s in (0.0021, 0.0994, 0.1, 3.123, 125)] == [
        "2 ms", "99 ms", "0.10 s", "3.12 s", "2 min 05 s",
    ]  # fmt: skip
    assert printable("a\x1bé\n\ud800") == "a\\x1bé\\n\\ud800"
    assert printable("abcdef", limit=4) == "abc…"


def test_help_names_every_command_and_each_has_its_own(call):
    from lanewise.cli.app import COMMANDS

    text = call("--help").stdout
    for name in COMMANDS:
        assert name in text
        own = call(name, "--help")
        assert own.exit_code == 0 and own.stdout.startswith(f"Usage: lanewise {name}")


def test_every_module_of_the_folder_is_used():
    import lanewise.cli
    from lanewise.cli.app import COMMANDS

    folder = Path(lanewise.cli.__file__).parent
    commands = {p.stem for p in folder.glob("*.py") if "command(" in p.read_text()}
    assert commands - {"app", "options"} == {module for module, _ in COMMANDS.values()}
