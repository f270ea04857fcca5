"""What a user can get wrong, and what a machine can lack: one error with code and remedy, the
right exit code, never a traceback; the same codes from Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import lanewise as lw
from tests.hostile import gguf_edit as g
from tests.hostile.conftest import TINY, Ran, environment, lanewise

RUN = ("-t", "1", "--temp", "0", "-n", "2")


def told(ran: Ran, code: str, *words: str, exit: int = 1) -> None:
    """One error, of that code, with a remedy, and nothing on stdout."""
    assert ran.out == "" and "Traceback" not in ran.err, ran.err
    assert ran.err.count("error[") == 1 and f"error[{code}]" in ran.err, ran.err
    assert ran.err.count("\n  remedy: ") == 1, ran.err
    assert len(ran.err) < 1500, ran.err
    for word in words:
        assert word in ran.err, ran.err
    assert ran.code == exit, ran.err


def iq2_xs(path: Path) -> Path:
    """A sound file of a model of one layer, whose attn_q is of a type that is not run."""
    doc = g.parse(TINY.read_bytes())
    doc.set("llama.block_count", g.U32, 1).set("llama.embedding_length", g.U32, 256)
    doc.set("llama.feed_forward_length", g.U32, 256)
    at = 0
    keep = [r for r in doc.rows if not r.name.startswith(b"blk.1.")]
    for row in keep:
        out = {b"token_embd.weight": row.dims[-1], b"blk.0.attn_k.weight": 128,
               b"blk.0.attn_v.weight": 128}.get(row.name, 256)  # fmt: skip
        row.dims, row.kind = ([256, out], 0) if len(row.dims) == 2 else ([256], 0)
        nbytes = 4 * 256 * (out if len(row.dims) == 2 else 1)
        if row.name == b"blk.0.attn_q.weight":
            row.kind, nbytes = 17, 256 * 74
        row.offset, at = at, at + nbytes
    doc.rows, doc.data = keep, bytearray(at)
    path.write_bytes(doc.build())
    return path


def mamba(path: Path) -> Path:
    doc = g.parse(TINY.read_bytes())
    path.write_bytes(doc.set("general.architecture", g.STRING, "mamba").build())
    return path


@pytest.fixture
def models(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "empty.gguf").write_bytes(b"")
    (tmp_path / "folder.gguf").mkdir()
    (tmp_path / "text.gguf").write_text("Once upon a time")
    (tmp_path / "cut.gguf").write_bytes(TINY.read_bytes()[:-1])
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "loop.gguf").symlink_to("loop.gguf")
    names = ("empty", "folder", "text", "cut", "pipe", "loop")
    return {n: str(tmp_path / f"{n}.gguf") for n in names} | {
        "iq2_xs": str(iq2_xs(tmp_path / "iq2_xs.gguf")),
        "mamba": str(mamba(tmp_path / "mamba.gguf")),
        "name": "no-such-model", "near": "smolm2", "nothing": "", "dash": "./none.gguf",
        "long": "m" * 5000, "nul": "a\0b",
    }  # fmt: skip


MODELS = [  # model, code, exit code, words
    ("name", "usage.model", 2, ["no-such-model", "smollm2"]),
    ("near", "usage.model", 2, ["did you mean smollm2?"]),
    ("nothing", "usage.model", 2, []),
    ("dash", "checkpoint.missing", 1, ["./none.gguf"]),
    ("long", "checkpoint.missing", 1, []),
    ("folder", "checkpoint.folder", 1, ["folder"]),
    ("empty", "checkpoint.truncated", 1, ["empty"]),
    ("text", "checkpoint.magic", 1, ["not a GGUF file", "Once"]),
    ("cut", "checkpoint.truncated", 1, ["fetch it again"]),
    ("pipe", "checkpoint.missing", 1, ["not a regular file"]),
    ("loop", "checkpoint.missing", 1, []),
    ("iq2_xs", "model.format", 1, ["blk.0.attn_q.weight", "iq2_xs", "q4_k"]),
    ("mamba", "model.architecture", 1, ["mamba", "llama, qwen3"]),
]


@pytest.mark.parametrize(("model", "code", "exit", "words"), MODELS, ids=[m[0] for m in MODELS])
def test_models(models, tmp_path, model, code, exit, words):
    cache = tmp_path / "cache"
    told(lanewise("run", models[model], "hi", *RUN, env=environment(cache)), code, *words,
         exit=exit)  # fmt: skip
    assert not cache.exists(), "nothing is made for a model that is refused"


@pytest.mark.parametrize(("model", "code"), [(m[0], m[1]) for m in MODELS] + [
    ("nul", "usage.model")])  # fmt: skip
def test_models_in_python(models, model, code):
    with pytest.raises(lw.LanewiseError) as caught:
        lw.compile(models[model])
    assert caught.value.code == code and caught.value.remedy


@pytest.mark.parametrize("command", [["inspect"], ["bench"], ["plan"], ["chat"],
                                     ["perplexity", "-"]])  # fmt: skip
def test_every_command_refuses_alike(models, tmp_path, command):
    ran = lanewise(command[0], models["text"], *command[1:], env=environment(tmp_path / "cache"),
                   stdin=b"some text")  # fmt: skip
    told(ran, "checkpoint.magic")


PROMPTS = [  # arguments, stdin, code, words
    (["word " * 200], b"", "usage.context", ["1019 tokens", "holds 128", "shorten the prompt"]),
    (["hi", "-c", "200"], b"", "usage.context", ["200", "128"]),
    (["hi", "-c", "1"], b"", "usage.context", ["-c"]),
    ([], b"", "usage.prompt", []),
    ([], b" \n\t ", "usage.prompt", []),
    ([], b"ab\xff\xfe", "usage.encoding", ["byte 2", "UTF-8"]),
    ([], "text".encode("utf-16"), "usage.encoding", ["iconv"]),
    ([], b"\xed\xa0\x80", "usage.encoding", []),
    ([], b"word " * 200_000, "usage.context", ["tokens"]),
    (["hi", "--hold", "nonsense"], b"", "usage.hold", ["nonsense", "the rules are"]),
]


@pytest.mark.parametrize(("args", "stdin", "code", "words"), PROMPTS,
                         ids=[str(i) for i in range(len(PROMPTS))])  # fmt: skip
def test_prompts_and_options(compiled, args, stdin, code, words):
    # What a case gives comes last, and wins.
    ran = lanewise("run", str(TINY), *RUN, *args, env=environment(compiled), stdin=stdin)
    told(ran, code, *words, exit=2)


SETTINGS = [
    ("LANEWISE_THREADS", "many"), ("LANEWISE_CONTEXT", "-3"), ("LANEWISE_MAX_CHUNK", "3"),
    ("LANEWISE_ISA", "mmx"), ("LANEWISE_WEIGHTS_IN", "cloud"), ("LANEWISE_OFFLINE", "perhaps"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), SETTINGS, ids=["=".join(s) for s in SETTINGS])
def test_settings(compiled, name, value):
    args = ["--temp", "0", "-n", "2"] + ([] if name == "LANEWISE_THREADS" else ["-t", "1"])
    ran = lanewise("run", str(TINY), "hi", *args, env=environment(compiled, **{name: value}))
    told(ran, "usage.setting", name, value, exit=2)


COMPILERS = [  # LANEWISE_CXX, code
    ("/bin/false", "build.compiler"), ("/nowhere/c++", "build.compiler"),
    ("/", "build.compiler"), ("'", "build.compiler"), ("/bin/true", "build."),
    ("/bin/cat", "build."), ("/bin/echo", "build."),
]


@pytest.mark.parametrize(("text", "code"), COMPILERS, ids=[c[0] for c in COMPILERS])
def test_compilers_that_are_none(tmp_path, text, code):
    env = environment(tmp_path / "cache", LANEWISE_CXX=text)
    ran = lanewise("run", str(TINY), "hi", *RUN, env=env)
    assert ran.code == 1 and ran.out == "" and "Traceback" not in ran.err
    assert ran.err.count("error[") == 1 and f"error[{code}" in ran.err
    assert "remedy: unset" in ran.err and "LANEWISE_CXX" in ran.err
    assert not list((tmp_path / "cache").rglob("*.so")) and not list(
        (tmp_path / "cache").glob("tmp/*"))


@pytest.mark.parametrize("content", [None, b"", b"#!/nowhere\n", b"\x7fELF of another machine"])
def test_a_ziglang_that_does_not_run(tmp_path, content):
    """The wheel without its compiler, or with one that cannot be started."""
    package = tmp_path / "other" / "ziglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    if content is not None:
        (package / "zig").write_bytes(content)
        (package / "zig").chmod(0o755)
    env = environment(tmp_path / "cache")
    env["PYTHONPATH"] = f"{tmp_path / 'other'}{os.pathsep}{env['PYTHONPATH']}"
    told(lanewise("run", str(TINY), "hi", *RUN, env=env), "build.compiler", "ziglang")


CACHES = [("a file", "it is no folder"), ("below a file", "it is no folder"),
          ("no such device", "No such file")]  # fmt: skip


@pytest.mark.parametrize(("kind", "word"), CACHES, ids=[c[0] for c in CACHES])
def test_caches_that_cannot_be(tmp_path, kind, word):
    (tmp_path / "file").write_text("")
    place = {"a file": tmp_path / "file", "below a file": tmp_path / "file" / "cache",
             "no such device": Path("/proc/nowhere")}[kind]  # fmt: skip
    ran = lanewise("run", str(TINY), "hi", *RUN, env=environment(place))
    told(ran, "build.cache", word, "LANEWISE_CACHE_DIR")
    for command in (["cache", "ls"], ["list"], ["inspect", str(TINY)]):
        ran = lanewise(*command, env=environment(place))
        assert "Traceback" not in ran.err and (ran.code == 0 or "error[build.cache]" in ran.err)


@pytest.fixture
def disk(tmp_path: Path):
    """`disk(size, **files)`: a small disk of its own; root only."""
    mounted: list[Path] = []

    def mount(size: str, *options: str) -> Path:
        place = tmp_path / f"disk{len(mounted)}"
        place.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", ",".join([f"size={size}", *options]), "tmpfs"]
        if os.geteuid() or subprocess.run([*words, str(place)], capture_output=True).returncode:
            pytest.skip("file systems cannot be mounted here")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("size", ["4k", "64k", "200k"])
def test_a_disk_that_is_full_when_compiling(disk, size):
    place = disk(size)
    ran = lanewise("run", str(TINY), "hi", *RUN, env=environment(place / "cache"))
    told(ran, "build.disk_full", "LANEWISE_CACHE_DIR")
    assert not list(place.rglob("*.so")) and not list(place.glob("cache/tmp/*"))


def test_a_disk_that_is_full_when_packing(disk, compiled):
    used = sum(-(-p.stat().st_size // 4096) * 4096 for p in compiled.rglob("*") if p.is_file())
    place = disk(str(used + (64 << 10)))
    shutil.copytree(compiled, place / "cache")
    shutil.rmtree(place / "cache" / "weights")
    with (place / "filler").open("wb") as file, pytest.raises(OSError):
        while True:
            os.write(file.fileno(), bytes(4096))
    ran = lanewise("run", str(TINY), "hi", *RUN, env=environment(place / "cache"))
    told(ran, "build.disk_full", "B are needed, ", "B are free", "LANEWISE_CACHE_DIR")
    assert not list(place.glob("cache/weights/*")) and not list(place.glob("cache/weights/.*"))
    (place / "filler").unlink()
    assert lanewise("run", str(TINY), "hi", *RUN, env=environment(place / "cache")).code == 0


def test_a_cache_that_cannot_be_written_when_packing_or_clearing(disk, compiled):
    """Programs are there, packed weights are not."""
    place = disk("16m")
    shutil.copytree(compiled, place / "cache")
    shutil.rmtree(place / "cache" / "weights")
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    ran = lanewise("run", str(TINY), "hi", *RUN, env=environment(place / "cache"))
    told(ran, "build.cache_unwritable", "Read-only", "LANEWISE_CACHE_DIR", str(place / "cache"))
    assert "Errno" not in ran.err
    ran = lanewise("cache", "clear", env=environment(place / "cache"))
    told(ran, "build.cache", "Read-only", str(place / "cache"))


@pytest.mark.parametrize("args", [["cache", "ls"], ["cache", "clear"]])
def test_a_cache_that_is_a_file_is_not_an_empty_one(tmp_path, args):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "within"):
        ran = lanewise(*args, env=environment(path))
        told(ran, "build.cache", f"{tmp_path / 'file'}: ", "it is no folder", "LANEWISE_CACHE_DIR")


def test_a_home_that_cannot_be_written(disk):
    home = disk("1m", "ro")
    env = environment(None, HOME=str(home), XDG_CACHE_HOME="")
    told(lanewise("run", str(TINY), "hi", *RUN, env=env), "build.cache", "Read-only",
         "LANEWISE_CACHE_DIR")  # fmt: skip
    told(lanewise("pull", "smollm2", env=env), "build.cache", "LANEWISE_CACHE_DIR")
    assert lanewise("inspect", str(TINY), env=env).code == 0


def test_a_name_without_a_network(tmp_path):
    ran = lanewise("run", "smollm2", "hi", "--offline", env=environment(tmp_path / "cache"))
    told(ran, "checkpoint.offline", "lanewise pull smollm2")
