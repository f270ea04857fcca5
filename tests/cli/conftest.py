"""The command line's tests run it in this process with a fake lane, or as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.cli import fake

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No LANEWISE_ variable of the outside counts, and the cache is the test's own."""
    for name in list(os.environ):
        if name.startswith("LANEWISE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("LANEWISE_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`call("run", "fake", "hi", stdin=...)`: the command with the fake lane, in this process."""
    from lanewise.cli import app

    fake.install(monkeypatch)
    fake.FakeLane.last = None

    def run(*args: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(app, list(args), input=stdin, prog_name="lanewise")

    return run


@pytest.fixture
def start() -> Callable[..., subprocess.Popen[bytes]]:
    """`start("run", "slow", "hi")`: the command with the fake lane, as a process."""

    def run(*args: str, module: str = "tests.cli.fake", **more: Any) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        env = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = [sys.executable, "-m", module, *args]
        return subprocess.Popen(command, env=env, cwd=ROOT, **{**pipes, **more})

    return run
