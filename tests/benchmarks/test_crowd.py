"""Decoding among others: busy processes that always end, quotas that leave nothing, fair shares."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import crowd
from tests.models.support import GOLDEN

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def gone(pid: int) -> bool:
    """Whether no such process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (OSError, IndexError):
        return True


def ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11])


@LINUX
def test_a_crowd_works_and_ends_also_on_an_error() -> None:
    pids: list[int] = []
    with pytest.raises(ZeroDivisionError), crowd.crowd(2) as made:
        pids += made
        assert len(pids) == 2
        until = time.monotonic() + 60
        while min(map(ticks, pids)) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        assert min(map(ticks, pids)) >= 2, "they do not use the CPU"
        raise ZeroDivisionError
    assert all(map(gone, pids))


@LINUX
def test_a_crowd_ends_with_its_script() -> None:
    """Killed outright, the script cannot end them: they end themselves."""
    code = ("import os, signal; from benchmarks.crowd import crowd\n"
            "with crowd(2) as pids:\n"
            "    print(*pids, flush=True); os.kill(os.getpid(), signal.SIGKILL)")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": f"{crowd.ROOT}"})  # fmt: skip
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2
    until = time.monotonic() + 60
    while not all(map(gone, pids)) and time.monotonic() < until:
        time.sleep(0.02)
    assert all(map(gone, pids))


def test_fair_shares() -> None:
    assert crowd.fair(2, 2, 4) == pytest.approx(1 / 3)
    assert crowd.fair(2, 1, 4) == 0.4
    assert crowd.fair(8, 8, 16) == pytest.approx(1 / 3)
    assert crowd.fair(8, 1, 2) == 1.0


def test_ratios_of_given_rates() -> None:
    told = crowd.record("a/m.gguf", {
        "alone": {2: [100.0, 80.0, 120.0], 1: [50.0, 50.0, 50.0]},
        "crowded": {2: [25.0, 40.0, 30.0], 1: [20.0, 10.0, 20.0]},
    }, {"crowded": {2: 1 / 3, 1: 0.4}})  # fmt: skip
    assert told["rows"] == [
        {"state": "alone", "threads": 2, "tok_s": 100.0},
        {"state": "alone", "threads": 1, "tok_s": 50.0},
        {"state": "crowded", "threads": 2, "tok_s": 30.0, "of_alone": 0.25, "fair": 0.333,
         "of_fair": 0.75},
        {"state": "crowded", "threads": 1, "tok_s": 20.0, "of_alone": 0.4, "fair": 0.4,
         "of_fair": 1.0},
    ]  # fmt: skip


class Groups:
    """A folder that behaves as cgroups do: a new one has files if the controller is handed on."""

    def __init__(self, root: Path, hands_on: tuple[str, ...]) -> None:
        self.root, self.hands_on, self.seen = root, hands_on, ""
        self.own = root / "a" / "b"
        self.own.mkdir(parents=True)
        for folder in (root, self.own.parent, self.own):
            (folder / "cgroup.procs").write_text("")

    def make(self, folder: Path) -> None:
        folder.mkdir()
        if folder.parent.name in self.hands_on:
            (folder / "cpu.max").write_text("max 100000")

    def quota(self) -> None:
        pid = str(os.getpid())
        rmdir = Path.rmdir

        def remove(folder: Path) -> None:  # a real one goes with its files
            for file in folder.iterdir():
                file.unlink()
            rmdir(folder)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "rmdir", remove)
            with crowd.quota(1.5, self.own, self.make):
                (made,) = self.root.rglob("cpu.max")
                self.seen = f"{made.parent.parent.name}: {made.read_text()}"
                assert (made.parent / "cgroup.procs").read_text() == pid
        assert (self.own / "cgroup.procs").read_text() == pid

    def left(self) -> list[str]:
        return [str(p) for p in self.root.rglob("lanewise*")]


@pytest.mark.parametrize(("hands_on", "seen"), [(("a",), "a"), (("b",), "b"), (("a", "b"), "a")])
def test_a_quota_is_a_cgroup_of_its_own(
    tmp_path: Path, hands_on: tuple[str, ...], seen: str
) -> None:
    groups = Groups(tmp_path, hands_on)
    for text in ("0::/a/b\n", "4:cpu:/x\n0::/a/b\n"):  # no v1 cpu controller is mounted
        assert crowd.own_cgroup(text, tmp_path) == groups.own
    groups.quota()
    assert groups.seen == f"{seen}: 150000 100000" and not groups.left()


def test_where_no_quota_can_be_had(tmp_path: Path) -> None:
    groups = Groups(tmp_path, ())
    with pytest.raises(crowd.NoQuota, match="handed on"):
        groups.quota()
    assert not groups.left()

    def refuse(folder: Path) -> None:
        raise PermissionError(13, "Permission denied")

    with pytest.raises(crowd.NoQuota, match="Permission"), crowd.quota(1, groups.own, refuse):
        pass
    for text, root in (("4:memory:/\n", tmp_path), ("0::/a\n", tmp_path / "none")):
        with pytest.raises(crowd.NoQuota, match="no cgroup of CPUs"):
            crowd.own_cgroup(text, root)


def test_a_quota_of_version_1(tmp_path: Path) -> None:
    groups = tmp_path / "cpu"
    groups.mkdir()
    (groups / "cgroup.procs").touch()
    own = crowd.own_cgroup("3:cpuset:/\n1:cpu:/\n0::/\n", tmp_path)
    assert own == groups
    assert not crowd.limit(own, 0.5)
    for name in ("quota", "period"):
        (own / f"cpu.cfs_{name}_us").touch()
    assert crowd.limit(own, 0.5)
    assert (own / "cpu.cfs_quota_us").read_text() == "50000"
    assert (own / "cpu.cfs_period_us").read_text() == "100000"


def test_a_tiny_model(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(GOLDEN / "llama_tied.q8_0.gguf")
    crowd.main([model, "--busy", "1", "--cores", "2", "--seconds", "0.1", "--rounds", "1",
                "--json"])  # fmt: skip
    told = json.loads(capsys.readouterr().out)
    assert (told["cores"], told["busy"], told["model"]) == (2, 1, "llama_tied.q8_0.gguf")
    found = {(r["state"], r["threads"]): r for r in told["rows"]}
    assert {("alone", 2), ("alone", 1), ("crowded", 2), ("crowded", 1)} <= set(found)
    assert all(r["tok_s"] > 0 for r in told["rows"])
    assert found["crowded", 1]["fair"] == 1.0 and found["crowded", 2]["fair"] == 0.667
    assert ("throttled", 2) in found or "not throttled" in told["notes"][0]
