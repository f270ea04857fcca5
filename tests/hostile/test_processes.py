"""Several processes at once, and processes that are ended in the middle of anything."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.hostile.conftest import TINY, Ran, environment, finish, lanewise, start

ARGS = ("run", str(TINY), "the hat", "-t", "1", "--temp", "0", "-n", "8", "-v")
STAGES = ("resolve", "read", "compile", "pack", "load", "answer")


@pytest.fixture(scope="module")
def answer(pristine: Path) -> str:
    ran = lanewise(*ARGS, env=environment(pristine))
    assert ran.code == 0
    return ran.out


def ended(stage: str, name: str, cache: Path) -> Ran:
    """A run that a signal ends at that stage."""
    return finish(start(["-m", "tests.hostile.ending", stage, name, *ARGS], environment(cache)))


def leftovers(cache: Path) -> list[str]:
    """Names of temporary things in the cache."""
    return [str(p.relative_to(cache)) for p in cache.rglob("*")
            if p.parent == cache / "tmp" or p.suffix == ".tmp"]  # fmt: skip


def compilers(cache: Path) -> list[str]:
    """Processes that work for this cache."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if str(cache).encode() in words or str(cache).encode() in _where(folder):
            found.append(words.decode(errors="replace"))
    return found


def _where(folder: Path) -> bytes:
    try:
        return os.readlink(folder / "cwd").encode()
    except OSError:
        return b""


@pytest.fixture
def prepared(pristine: Path, tmp_path: Path):
    """`prepared(stage)`: a copy of the compiled cache in which that stage has work to do."""

    def make(stage: str) -> Path:
        cache = tmp_path / "cache"
        shutil.copytree(pristine, cache)
        if stage in ("compile", "pack"):
            shutil.rmtree(cache / "weights")
        if stage == "compile":
            shutil.rmtree(cache / "cpu" / "lib")
            largest = max((cache / "cpu" / "obj").iterdir(), key=lambda p: p.stat().st_size)
            smallest = min((cache / "cpu" / "obj").iterdir(), key=lambda p: p.stat().st_size)
            largest.unlink()
            smallest.unlink()
        return cache

    return make


@pytest.mark.parametrize("stage", STAGES)
def test_ctrl_c(prepared, answer, stage):
    cache = prepared(stage)
    ran = ended(stage, "SIGINT", cache)
    assert ran.code == 130 and "Traceback" not in ran.err and "error[" not in ran.err, ran.err
    assert ran.out.startswith(answer[:1]) if stage == "answer" else not ran.out
    assert not leftovers(cache) and not compilers(cache)
    again = lanewise(*ARGS, env=environment(cache))
    assert again.code == 0 and again.out == answer


@pytest.mark.parametrize("stage", ["compile", "pack"])
@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_ended_from_outside(prepared, stage, name, code):
    cache = prepared(stage)
    ran = ended(stage, name, cache)
    assert ran.code == code and not ran.out and "Traceback" not in ran.err, ran.err
    assert not leftovers(cache) and not compilers(cache)


@pytest.mark.parametrize("stage", STAGES)
def test_killed(prepared, answer, stage):
    """Nobody can clean up, but nothing half done is taken for done, and what was left goes."""
    cache = prepared(stage)
    assert ended(stage, "SIGKILL", cache).code == -signal.SIGKILL
    again = lanewise(*ARGS, env=environment(cache))
    assert again.code == 0 and again.out == answer, again.err
    old = time.time() - 3600
    for name in leftovers(cache):
        os.utime(cache / name, (old, old))
    # Both are swept by whoever writes next.
    shutil.rmtree(cache / "cpu" / "lib")
    for path in (cache / "weights").glob("*.weights"):
        path.unlink()
    assert lanewise(*ARGS, env=environment(cache)).out == answer
    assert not leftovers(cache)


def seen(cache, pattern):
    """Is there such a file, in folders that another process makes and removes meanwhile?"""
    try:
        return bool(list(cache.glob(pattern)))
    except FileNotFoundError:
        return False


def test_killed_with_its_compilers_at_work_then_three_at_once(tmp_path, answer):
    cache = tmp_path / "cache"
    process = start(["-m", "lanewise", *ARGS], environment(cache))
    end = time.monotonic() + 60
    while not seen(cache, "tmp/*/*/unit.cpp") and time.monotonic() < end:
        time.sleep(0.01)
    process.kill()
    assert finish(process).code == -signal.SIGKILL
    runs = [finish(p) for p in [start(["-m", "lanewise", *ARGS], environment(cache))
                                for _ in range(3)]]  # fmt: skip
    assert [r.code for r in runs] == [0, 0, 0], [r.err for r in runs]
    assert {r.out for r in runs} == {answer}
    # What one has made the others wait for and use.
    assert sum("cached" in r.err for r in runs) >= 1
    assert len(list(cache.glob("weights/*.weights"))) == 1


def test_a_second_ctrl_c(prepared):
    """Impatience makes no traceback either."""
    cache = prepared("compile")
    process = start(["-m", "lanewise", *ARGS], environment(cache), start_new_session=True)
    end = time.monotonic() + 60
    while not seen(cache, "tmp/*") and time.monotonic() < end:
        time.sleep(0.01)
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    ran = finish(process)
    assert ran.code in (130, -signal.SIGINT) and "Traceback" not in ran.err, ran.err

