"""On a real (pseudo) terminal: live stages, tables, the editor, chat when no prompt is given."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.cli.conftest import ROOT

pty = pytest.importorskip("pty")


class Terminal:
    """The command with the fake lane, on a terminal of its own; `screen` is what it wrote."""

    def __init__(self, *args: str) -> None:
        self.master, slave = pty.openpty()
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.fake", *args],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=ROOT,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path, "TERM": "xterm", "COLUMNS": "100"},
        )
        os.close(slave)
        self.screen = ""

    def until(self, text: str, seconds: float = 20) -> None:
        """Read until `text` stands on the screen behind what was read before."""
        start, end = len(self.screen), time.monotonic() + seconds
        while text not in self.screen[start:]:
            assert time.monotonic() < end, f"no {text!r} in {self.screen[start:]!r}"
            if not self._read(0.1) and self.process.poll() is not None:
                pytest.fail(f"it ended: {self.screen!r}")

    def _read(self, wait: float) -> bool:
        if not select.select([self.master], [], [], wait)[0]:
            return False
        with suppress(OSError):
            data = os.read(self.master, 65536)
            self.screen += data.decode("utf-8", "replace")
            if "\x1b[6n" in data.decode("utf-8", "replace"):
                self.type("\x1b[1;1R")  # where the cursor is, as the editor asks
            return bool(data)
        return False

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def end(self, seconds: float = 20) -> int:
        """Read to the end; the exit code."""
        stop = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < stop:
            self._read(0.1)
        while self._read(0.05):
            pass
        return self.process.wait(timeout=1)


@pytest.fixture
def terminal() -> Iterator[type[Terminal]]:
    made: list[Terminal] = []

    class Made(Terminal):
        def __init__(self, *args: str) -> None:
            super().__init__(*args)
            made.append(self)

    yield Made
    for t in made:
        if t.process.poll() is None:
            t.process.kill()
            t.process.wait()
        os.close(t.master)


def test_run_tells_its_stages_and_its_speed(terminal):
    t = terminal("run", "fake", "hi")
    assert t.end() == 0
    for word in ("resolve", "download", "100.0 MB", "compile", "3/3", "load"):
        assert word in t.screen
    answer = t.screen.index("The capital of France is Paris.")
    assert t.screen.index("load") < answer < t.screen.index("prompt 10 tok, 20.0 tok/s")


def test_no_control_codes_of_the_model_reach_the_screen(terminal):
    t = terminal("run", "rude", "hi", "-q")
    assert t.end() == 0
    assert t.screen == "a[2J31m?b\r\n"


def test_ctrl_c_from_the_keyboard(terminal):
    t = terminal("run", "slow", "hi", "-q")
    t.until("tick ")
    os.kill(t.process.pid, signal.SIGINT)
    assert t.end() == 130
    assert t.screen.endswith("\r\n") and "Traceback" not in t.screen


def test_a_table_is_drawn(terminal):
    t = terminal("list")
    assert t.end() == 0
    assert "─" in t.screen and "smollm2" in t.screen


def test_run_without_a_prompt_is_a_chat(terminal):
    t = terminal("run", "fake")
    t.until(">>>")
    t.type("hello\r")
    t.until("is Paris.")
    t.until(">>>")
    t.type("\x03")  # drops the line
    t.type("/set\r")
    t.until("top-k")
    t.until(">>>")
    t.type("\x04")
    assert t.end() == 0
    assert "Traceback" not in t.screen


def test_what_follows_ctrl_c_begins_a_line(terminal):
    t = terminal("run", "stuck", "hi", "-v")
    t.until("a line")
    t.type("\x03")  # the terminal shows ^C, here after a line that has ended
    t.until("^C")
    os.kill(t.process.pid, signal.SIGINT)
    assert t.end() == 130
    assert "^C\r\nprompt" in t.screen


def test_ctrl_c_in_an_answer_goes_back_to_the_prompt(terminal):
    t = terminal("chat", "slow", "-q")
    t.until(">>>")
    t.type("hello\r")
    t.until("tick tick")
    os.kill(t.process.pid, signal.SIGINT)
    t.until(">>>")
    t.type("/exit\r")
    assert t.end() == 0
