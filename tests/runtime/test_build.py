"""The build: cached by key, never trusted unproven, safe with several processes, clear errors."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lanewise.errors import BuildError
from lanewise.plan.program import KernelObject, Program
from lanewise.runtime import build, cache, compiler
from lanewise.runtime.library import Library
from lanewise.targets.cpu import CpuTarget, detect, supported

Make = Callable[..., Program]
Told = list[tuple[str, int, int, str]]


def answer(path: Path) -> int:
    return Library(path).function("lw_test_answer", "ii")(41)


def teller(told: Told) -> Callable[[str, int, int, str], None]:
    return lambda *what: told.append(what)


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_compiles_once(cache_dir: Path, target: CpuTarget, make_program: Make) -> None:
    told: Told = []
    first = build.build(make_program(1), target, teller(told))
    assert answer(first) == 42
    assert told[0] == ("compile", 0, 1, "") and told[-1] == ("compile", 1, 1, "program")
    told.clear()
    before = {e.path: e.mtime for e in cache.entries()}
    assert build.build(make_program(1), target, teller(told)) == first
    assert told == [("compile", 1, 1, "cached")]
    assert {e.path: e.mtime for e in cache.entries()} == before
    assert not list((cache_dir / "tmp").iterdir())


def test_relative_paths_of_the_cache_and_the_compiler(
    tmp_path: Path, target: CpuTarget, make_program: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LANEWISE_CACHE_DIR", "here/it is")
    made = build.build(make_program(1), target)
    assert answer(made) == 42 and made.is_relative_to(tmp_path / "here" / "it is")
    script(tmp_path / "cxx", 'echo "clang version 1"')
    monkeypatch.setenv("LANEWISE_CXX", "./cxx")
    assert compiler.find().identity == "clang version 1"


def test_a_hit_runs_no_compiler_and_is_quick(
    cache_dir: Path, target: CpuTarget, make_program: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = make_program(1)
    build.build(program, target)
    monkeypatch.setattr(subprocess, "Popen", None)  # any attempt to start one now fails
    best = 1.0
    for _ in range(5):
        build.headers_digest.cache_clear()  # as a new process would read them
        start = time.perf_counter()
        build.build(program, target)
        best = min(best, time.perf_counter() - start)
    assert best < 0.03


def test_another_text_is_another_library(
    cache_dir: Path, target: CpuTarget, make_program: Make
) -> None:
    assert answer(build.build(make_program(1), target)) == 42
    assert answer(build.build(make_program(2), target)) == 43


def test_kernel_objects_are_shared(
    cache_dir: Path,
    target: CpuTarget,
    make_program: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels = tmp_path / "kernels"
    kernels.mkdir()
    (kernels / "k.h").write_text("#define BASE 100\n")
    (kernels / "k.cpp").write_text(
        '#include "k.h"\nextern "C" int lw_test_kernel(int x) { return x + BASE + LW_ADD; }\n'
    )
    monkeypatch.setattr(build, "KERNELS", kernels)
    text = (
        'extern "C" int lw_test_kernel(int);\n'
        'extern "C" int lw_test_answer(int x) { return lw_test_kernel(x) + %d; }\n'
    )
    kernel = KernelObject("k.cpp", ("LW_ADD=5",), ("lw_test_kernel",))
    told: Told = []
    first = build.build(make_program(text=text % 0, objects=(kernel,)), target, teller(told))
    assert answer(first) == 146
    told.clear()
    second = build.build(make_program(text=text % 1, objects=(kernel,)), target, teller(told))
    assert answer(second) == 147
    assert told[0] == ("compile", 1, 2, "")  # the kernel's object was there
    assert not Library(first).has("lw_test_kernel")  # kernels stay inside their library
    (kernels / "k.h").write_text("#define BASE 200\n")
    build.headers_digest.cache_clear()
    third = build.build(make_program(text=text % 0, objects=(kernel,)), target)
    assert answer(third) == 246  # a header is part of the key
    five = KernelObject("k.cpp", ("LW_ADD=6",), ("lw_test_kernel",))
    assert answer(build.build(make_program(text=text % 0, objects=(five,)), target)) == 247


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "swapped", "trailer", "grown"])
def test_a_damaged_library_is_made_again(
    cache_dir: Path, target: CpuTarget, make_program: Make, damage: str
) -> None:
    path = build.build(make_program(1), target)
    raw = path.read_bytes()
    damaged = {
        "cut": raw[: len(raw) // 2],
        "flip": raw[:700] + bytes([raw[700] ^ 1]) + raw[701:],
        "empty": b"",
        "trailer": raw[:-1] + bytes([raw[-1] ^ 1]),
        "grown": raw + b"\0",
    }
    if damage == "swapped":
        other = build.build(make_program(2), target)
        path.write_bytes(other.read_bytes())  # sound, but of another key
    else:
        path.write_bytes(damaged[damage])
    told: Told = []
    assert build.build(make_program(1), target, teller(told)) == path
    assert told[-1][3] != "cached" and path.read_bytes() == raw
    assert answer(path) == 42


def test_a_damaged_object_is_made_again(
    cache_dir: Path, target: CpuTarget, make_program: Make
) -> None:
    path = build.build(make_program(1), target)
    path.unlink()
    (entry,) = [e for e in cache.entries() if e.kind == "cpu/obj"]
    raw = entry.path.read_bytes()
    entry.path.write_bytes(raw[:100] + b"\xff" + raw[101:])
    assert answer(build.build(make_program(1), target)) == 42
    assert entry.path.read_bytes() == raw


PROCESS = """
import sys
import threading
from lanewise.plan.program import Program
from lanewise.runtime import build
from lanewise.runtime.library import Library
from lanewise.targets.cpu import detect
text = 'extern "C" int lw_test_answer(int x) { return x + 7; }'
program = Program(text, "id", "cpu", (), (), (), (), (), 0, 0, 0)
print(Library(build.build(program, detect())).function("lw_test_answer", "ii")(1))
"""


def test_several_processes_at_once(cache_dir: Path) -> None:
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS], env=env, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    assert [p.communicate(timeout=60)[0].strip() for p in started] == ["8"] * 3
    kinds = [e.kind for e in cache.entries()]
    assert kinds.count("cpu/lib") == 1 and kinds.count("tmp") == 0


def test_an_error_of_the_text(cache_dir: Path, target: CpuTarget, make_program: Make) -> None:
    with pytest.raises(BuildError) as e:
        build.build(make_program(text="int f() {\n  return nowhere;\n}\n"), target)
    assert e.value.code == "build.compile" and e.value.place == "program"
    assert "program:2:10" in e.value.message and "nowhere" in e.value.message
    assert e.value.remedy
    assert not [x for x in cache.entries() if x.kind in ("cpu/obj", "cpu/lib", "tmp")]


def test_a_missing_symbol_is_named(cache_dir: Path, target: CpuTarget, make_program: Make) -> None:
    text = (
        'extern "C" int lw_absent(int);\n'
        'extern "C" int lw_test_answer(int x) { return lw_absent(x); }\n'
    )
    path = build.build(make_program(text=text), target)
    with pytest.raises(BuildError) as e:
        Library(path)
    assert e.value.code == "build.load" and "lw_absent" in e.value.message
    good = build.build(make_program(1), target)
    with pytest.raises(BuildError) as e:
        Library(good).function("lw_other", "v")
    assert e.value.code == "build.symbol"


def refused(program: Program, target: CpuTarget) -> BuildError:
    with pytest.raises(BuildError) as e:
        build.build(program, target)
    assert e.value.remedy
    return e.value


def test_no_compiler(
    cache_dir: Path,
    target: CpuTarget,
    make_program: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LANEWISE_CXX", "/nowhere/clang++")
    error = refused(make_program(), target)
    assert error.code == "build.compiler" and error.place == "LANEWISE_CXX"
    monkeypatch.setenv("LANEWISE_CXX", str(script(tmp_path / "broken", "echo dead >&2; exit 3")))
    error = refused(make_program(), target)
    assert error.code == "build.compiler" and "dead" in error.message
    not_a_program = script(tmp_path / "junk", "")
    not_a_program.write_bytes(b"\x7fELFjunk")
    monkeypatch.setenv("LANEWISE_CXX", str(not_a_program))
    assert refused(make_program(), target).code == "build.compiler"
    monkeypatch.delenv("LANEWISE_CXX")
    monkeypatch.setattr(compiler, "find_spec", lambda name: None)
    error = refused(make_program(), target)
    assert error.code == "build.compiler" and "pip install ziglang" in error.remedy


def test_a_compiler_that_hangs(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = script(tmp_path / "hangs", "sleep 60 & wait")
    start = time.monotonic()
    with pytest.raises(BuildError) as e:
        compiler.run([str(hangs)], tmp_path, timeout_s=0.2)
    assert e.value.code == "build.compiler" and time.monotonic() - start < 5


def test_warnings_do_not_hide_the_error() -> None:
    said = "".join(f"x.h:{i}: warning: w\n" for i in range(40)) + "x.h:9: error: here\n  at\nend\n"
    shown = compiler.first_lines(compiler.Outcome(1, said), 2)
    assert shown == "x.h:9: error: here\n  at\n... 41 more lines"
    assert compiler.first_lines(compiler.Outcome(1, "a\nb\nc\n"), 2) == "a\nb\n... 1 more lines"
    assert compiler.first_lines(compiler.Outcome(-9, ""), 2) == "ended by signal 9"


def test_a_changed_compiler_is_asked_again(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = script(tmp_path / "cxx", 'echo "clang version 1"')
    monkeypatch.setenv("LANEWISE_CXX", str(mine))
    assert compiler.find().identity == "clang version 1" and compiler.find().family == "clang"
    script(mine, 'echo "g++ (GCC) 14.2"')
    assert compiler.find().identity == "g++ (GCC) 14.2" and compiler.find().family == "gcc"


def test_read_only_cache(
    cache_dir: Path, target: CpuTarget, make_program: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = build.build(make_program(1), target)

    def denied(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(cache_dir))

    # Permissions do not stop root, and tests may run as root.
    monkeypatch.setattr(Path, "mkdir", denied)
    monkeypatch.setattr(os, "replace", denied)
    monkeypatch.setattr(cache.tempfile, "mkdtemp", denied)
    assert build.build(make_program(1), target) == made  # what is there still serves
    error = refused(make_program(2), target)
    assert error.code == "build.cache" and "LANEWISE_CACHE_DIR" in error.remedy


def test_a_file_where_the_cache_should_be(
    target: CpuTarget, make_program: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LANEWISE_CACHE_DIR", str(tmp_path / "file"))
    assert refused(make_program(), target).code == "build.cache"


def test_disk_full(
    cache_dir: Path,
    target: CpuTarget,
    make_program: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as m:
        m.setattr(cache, "_append", full)
        error = refused(make_program(), target)
        assert error.code == "build.disk_full" and "lanewise cache clear" in error.remedy
    assert not [x for x in cache.entries() if x.kind.startswith(("cpu", "tmp"))]
    says = (
        'if [ "$1" = --version ]; then echo clang version 1; exit 0; fi\n'
        'echo "unit.cpp: error: No space left on device"; exit 1'
    )
    monkeypatch.setenv("LANEWISE_CXX", str(script(tmp_path / "cxx", says)))
    assert refused(make_program(), target).code == "build.disk_full"
    script(tmp_path / "cxx", says.replace('echo "unit.cpp: error: No space left on device"', ":"))
    assert refused(make_program(), target).code == "build.compile"
    monkeypatch.setattr(cache, "full", lambda: True)  # it died without a word, the disk is full
    assert refused(make_program(), target).code == "build.disk_full"


def test_entries_and_clear(cache_dir: Path, target: CpuTarget, make_program: Make) -> None:
    build.build(make_program(1), target)
    kinds = {e.kind for e in cache.entries()}
    assert {"cpu/lib", "cpu/obj", "cpu/compiler"} <= kinds
    (cache_dir / "models").mkdir()
    (cache_dir / "models" / "m.gguf").write_bytes(b"12345")
    size = sum(e.nbytes for e in cache.entries() if e.kind.startswith("cpu"))
    assert cache.clear() == size > 0
    assert [e.name for e in cache.entries() if e.kind != "."] == ["m.gguf"]
    with cache.workspace() as work:  # somebody is building
        (work / "x").write_text("x")
        assert cache.clear() == 0 and (work / "x").exists()
    for kind in (".", "..", "absent"):
        assert cache.clear((kind,)) == 0
    assert answer(build.build(make_program(1), target)) == 42


def test_what_killed_processes_left_is_swept(cache_dir: Path) -> None:
    old, young = cache_dir / "tmp" / "1-old", cache_dir / "tmp" / "2-young"
    old.mkdir(parents=True)
    young.mkdir()
    os.utime(old, (time.time() - 2e5,) * 2)
    with cache.workspace():
        assert not old.exists() and young.exists()


def test_loaded_library_survives_clear(
    cache_dir: Path, target: CpuTarget, make_program: Make
) -> None:
    library = Library(build.build(make_program(1), target))
    cache.clear()
    assert library.function("lw_test_answer", "ii")(1) == 2
    assert isinstance(library.address("lw_test_answer"), int)
    assert ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(library.address("lw_test_answer"))(2) == 3


VECTOR = """
#include "vec.h"
extern "C" int lw_test_answer(int x) {
  float a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = (float)(x + i);
  for (int i = 0; i < 16; i += VF_N)
    vf_store(b + i, vf_fma(vf_load(a + i), vf_set(2.0f), vf_set(1.0f)));
  return (int)b[15];
}
"""


@pytest.mark.parametrize("isa", supported())
@pytest.mark.parametrize("tool", ["", "g++", "clang++"])
def test_every_set_and_compiler(
    cache_dir: Path, make_program: Make, isa: str, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tool:
        if not shutil.which(tool):
            pytest.skip(f"no {tool} here")
        monkeypatch.setenv("LANEWISE_CXX", tool)
        assert compiler.find().family == {"g++": "gcc", "clang++": "clang"}[tool]
    # 2 * (41 + 15) + 1
    assert answer(build.build(make_program(text=VECTOR), detect(isa))) == 113


@pytest.mark.parametrize("isa", ["neon_i8mm", "neon_dotprod", "neon"])
def test_another_architecture_compiles(cache_dir: Path, make_program: Make, isa: str) -> None:
    arm = CpuTarget(isa, "aarch64")
    raw = build.build(make_program(text=VECTOR), arm).read_bytes()
    assert raw[:4] == b"\x7fELF" and raw[18:20] == b"\xb7\x00"  # EM_AARCH64


def test_an_interrupt_ends_the_compilers(
    cache_dir: Path, make_program: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    says = (
        'if [ "$1" = --version ]; then echo clang version 1; exit 0; fi\n'
        f"sleep 60 & echo $! >> {pids}; wait"
    )
    monkeypatch.setenv("LANEWISE_CXX", str(script(tmp_path / "cxx", says)))

    def interrupt(stage: str, done: int, total: int, detail: str) -> None:
        def later() -> None:
            while not pids.exists() or not pids.read_text().strip():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=later, daemon=True).start()

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        build.build(make_program(1), detect("scalar"), interrupt)
    assert time.monotonic() - start < 20
    time.sleep(0.05)
    for pid in pids.read_text().split():
        state = Path(f"/proc/{pid}/stat")
        assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"
    assert not [e for e in cache.entries() if e.kind.startswith("tmp")]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_process_does_not_hold_the_turn_of_its_parents_thread():
    code = """
import os, signal, threading, time
from lanewise.runtime import cache
inside, go = threading.Event(), threading.Event()
def work():
    with cache.turn():
        inside.set()
        go.wait()
thread = threading.Thread(target=work)
thread.start()
inside.wait()
left, done = os.pipe()
child = os.fork()
if child == 0:
    signal.alarm(50)
    os.read(left, 1)  # the parent's thread has left
    start = time.monotonic()
    with cache.turn(wait_s=30):
        os._exit(0 if time.monotonic() - start < 15 else 3)
go.set()
thread.join()
os.write(done, b"x")
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True,
                          text=True, timeout=120, env=env)  # fmt: skip
    assert done.stdout.strip() == "0", done.stderr


@pytest.mark.parametrize("limited", [False, True])
def test_a_compiler_that_dies_without_a_word(
    cache_dir: Path, target: CpuTarget, make_program: Make, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, limited: bool,
) -> None:  # fmt: skip
    says = 'if [ "$1" = --version ]; then echo clang version 1; exit 0; fi\nkill -ABRT $$'
    monkeypatch.setenv("LANEWISE_CXX", str(script(tmp_path / "cxx", says)))
    size = 1 << 40 if limited else resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda _: (size, resource.RLIM_INFINITY))
    error = refused(make_program(), target)
    assert error.code == "build.compile" and "ended by signal 6" in error.message
    assert "free memory" in error.remedy and ("ulimit -f" in error.remedy) == limited
