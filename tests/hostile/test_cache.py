"""Whatever happens to files of the cache, the answer is the same, and the next start finds good
ones again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.hostile.conftest import TINY, Ran, environment, lanewise

ASK = ("run", str(TINY), "the hat", "-t", "1", "--temp", "0", "-n", "8", "-v")
Damage = Callable[[Path, bytes], None]  # of a file, and the content of another


def replace(path: Path, raw: bytes | bytearray) -> None:
    """By another file: programs that run keep what they have mapped."""
    new = path.with_name(path.name + ".new")
    new.write_bytes(raw)
    os.replace(new, path)


def flipped(where: float) -> Damage:
    def damage(path: Path, _: bytes) -> None:
        raw = bytearray(path.read_bytes())
        raw[int(where * (len(raw) - 1))] ^= 1
        replace(path, raw)

    return damage


def kept(share: float, less: int = 0) -> Damage:
    def damage(path: Path, _: bytes) -> None:
        raw = path.read_bytes()
        replace(path, raw[: int(len(raw) * share) - less])

    return damage


def folder(path: Path, _: bytes) -> None:
    path.unlink()
    path.mkdir()
    (path / "something").write_text("in the way")


def pipe(path: Path, _: bytes) -> None:
    path.unlink()
    os.mkfifo(path)


def link_to_nowhere(path: Path, _: bytes) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def link_to_itself(path: Path, _: bytes) -> None:
    path.unlink()
    path.symlink_to(path.name)


DAMAGES: dict[str, Damage] = {
    "first byte": flipped(0), "middle byte": flipped(0.5), "last byte": flipped(1),
    "half": kept(0.5), "one byte less": kept(1, 1), "empty": kept(0), "another's": replace,
    "longer": lambda path, _: replace(path, path.read_bytes() + b"\0"),
    "folder": folder, "pipe": pipe, "link to nowhere": link_to_nowhere,
    "link to itself": link_to_itself,
}  # fmt: skip


def files(cache: Path) -> list[Path]:
    """All that a start reads (no objects: those it links, and they cost seconds)."""
    found = [p for p in sorted(cache.rglob("*")) if p.is_file() and p.stat().st_size]
    return [p for p in found if p.suffix != ".o"]


def hurt(paths: Iterable[Path], damage: Damage) -> None:
    paths = sorted(paths)
    contents = [p.read_bytes() for p in paths]
    for i, path in enumerate(paths):
        # Another of the same kind, where there is one.
        like = [j for j, p in enumerate(paths) if p.parent == path.parent and j != i]
        damage(path, contents[like[0] if like else i - 1])


@pytest.fixture(scope="module")
def answer(pristine: Path) -> str:
    ran = lanewise(*ASK, env=environment(pristine))
    assert ran.code == 0 and "cached" in ran.err and "pack" not in ran.err
    return ran.out


def same_and_mended(cache: Path, answer: str) -> Ran:
    """The same answer twice; the second time nothing has to be made.  The first run."""
    ran = lanewise(*ASK, env=environment(cache))
    assert ran.code == 0 and ran.out == answer, ran.err
    again = lanewise(*ASK, env=environment(cache))
    assert again.code == 0 and again.out == answer, again.err
    assert "cached" in again.err and "pack" not in again.err
    assert not list((cache / "tmp").iterdir())
    return ran


LIKE_OTHERS = ("half", "longer", "first byte", "link to nowhere")


@pytest.mark.parametrize("name", [
    pytest.param(n, marks=pytest.mark.slow) if n in LIKE_OTHERS else n for n in DAMAGES
])  # fmt: skip
def test_every_file_damaged(fresh, answer, name):
    hurt(files(fresh), DAMAGES[name])
    ran = same_and_mended(fresh, answer)
    assert "pack" in ran.err


def test_each_file_alone(fresh, answer):
    kinds = {}
    for path in files(fresh):
        kinds.setdefault((path.parent, path.suffix), []).append(path)
    assert len(kinds) == 5, "weights, program, libraries, compiler, tuning"
    for path in [paths[0] for paths in kinds.values()] + kinds[fresh / "cpu" / "lib", ".so"][1:]:
        # Packers are asked for only where there are no weights.
        hurt({path, *fresh.glob("weights/*.weights")}, flipped(0.3))
        hurt_bytes = path.read_bytes()
        ran = lanewise(*ASK, env=environment(fresh))
        assert ran.code == 0 and ran.out == answer, (path, ran.err)
        assert path.read_bytes() != hurt_bytes, f"{path} was not made again"
    assert "cached" in lanewise(*ASK, env=environment(fresh)).err


def test_objects_too(fresh, answer):
    objects = sorted((fresh / "cpu" / "obj").iterdir(), key=lambda p: p.stat().st_size)
    hurt([*objects[:3], *files(fresh)], flipped(0.5))
    assert "compile" in same_and_mended(fresh, answer).err


def test_nothing_left_but_folders(fresh, answer):
    for path in files(fresh):
        path.unlink()
    same_and_mended(fresh, answer)


def test_folders_of_files_that_are_not_ours(fresh, answer):
    for name in ("weights", "cpu/lib", "cpu/program", "cpu/compiler", "tmp"):
        (fresh / name).mkdir(exist_ok=True)
        (fresh / name / "notes.txt").write_text("a stranger's")
    ran = lanewise(*ASK, env=environment(fresh))
    assert ran.code == 0 and ran.out == answer
    assert (fresh / "weights" / "notes.txt").read_text() == "a stranger's"


BARE = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")


@pytest.fixture
def bare() -> tuple[str, ...]:
    """Words before a command that take root's right to read and write everything."""
    if os.geteuid() != 0:
        return ()
    if shutil.which("setpriv") is None:
        pytest.skip("root without setpriv cannot be kept from reading")
    return BARE


def test_files_that_may_not_be_read(fresh, answer, bare):
    for path in files(fresh):
        path.chmod(0)
    ran = lanewise(*ASK, env=environment(fresh), before=bare)
    assert ran.code == 0 and ran.out == answer, ran.err
    assert "cached" in lanewise(*ASK, env=environment(fresh), before=bare).err


def test_a_cache_that_cannot_be_written_serves_what_it_holds(fresh, answer, bare):
    folders = [fresh, *(p for p in fresh.rglob("*") if p.is_dir())]
    for path in folders:
        path.chmod(0o555)
    try:
        ran = lanewise(*ASK, env=environment(fresh), before=bare)
        assert ran.code == 0 and ran.out == answer, ran.err
        other = lanewise(*ASK, "-c", "300", env=environment(fresh), before=bare)
        missed = lanewise(*ASK, "--hold", "all", env=environment(fresh), before=bare)
    finally:
        for path in folders:
            path.chmod(0o755)
    assert other.code == 2 and "usage.context" in other.err  # refused before the cache is asked
    assert missed.code == 1 and missed.err.count("error[build.cache]") == 1
    assert "LANEWISE_CACHE_DIR" in missed.err and "Traceback" not in missed.err
