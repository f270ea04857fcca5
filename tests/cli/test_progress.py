"""Stages on a terminal: lines redrawn, erased before the answer, one line each at the end."""

from __future__ import annotations

import io
import threading

from lanewise.cli.progress import Stages, bar, closing_line
from lanewise.lane.generate import Timings


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_silent_in_a_pipe_unless_asked():
    pipe = io.StringIO()
    Stages(None, pipe)("load", 0, 1, "")
    assert pipe.getvalue() == ""
    stages = Stages(True, pipe)
    stages("load", 0, 1, "x")
    assert pipe.getvalue() == "", "no line before its end, for there is no redrawing in a pipe"
    stages.close()
    stages.close()
    assert pipe.getvalue().startswith("load      x ") and pipe.getvalue().count("\n") == 1


def test_a_terminal_is_redrawn_and_left_clean():
    terminal = Terminal()
    stages = Stages(None, terminal)
    stages("download", 0, 1 << 20, "file")
    assert terminal.getvalue().startswith("\r\x1b[Kdownload  [--------------------] 0 B / 1.0 MB")
    stages("download", 1 << 20, 1 << 20, "file")
    assert terminal.getvalue().endswith("ms\n") and "[####" not in terminal.getvalue()
    before = len(terminal.getvalue())
    stages("prompt", 3, 10, "")
    stages.close()
    assert terminal.getvalue()[before:] == "\r\x1b[Kprompt    3/10\r\x1b[K"


def test_a_narrow_terminal_has_no_gaps(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    terminal = Terminal()
    stages = Stages(None, terminal)
    stages("compile", 6, 6, "cached")
    line = terminal.getvalue().removeprefix("\r\x1b[K").removesuffix("\n")
    assert len(line) < 40 and "cached" in line and line.endswith(" ms")


def test_control_characters_do_not_reach_the_terminal():
    terminal = Terminal()
    Stages(None, terminal)("resolve", 1, 1, "a\x1b[2Jb")
    assert "a\\x1b[2Jb" in terminal.getvalue()


def test_quiet_wins_over_the_terminal():
    terminal = Terminal()
    stages = Stages(False, terminal)
    stages("compile", 1, 1, "cached")
    stages.say("x")
    assert terminal.getvalue() == "" and stages.cached


def test_many_threads_do_not_mix_lines():
    pipe = io.StringIO()
    stages = Stages(True, pipe)
    threads = [
        threading.Thread(target=lambda: [stages("compile", i, i, "") for i in range(1, 201)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = pipe.getvalue().splitlines()
    assert 200 <= len(lines) <= 800 and all(line.startswith("compile ") for line in lines)


def test_an_end_told_twice_is_one_line():
    pipe = io.StringIO()
    stages = Stages(True, pipe)
    stages("load", 5, 5, "a")
    stages("load", 5, 5, "")
    assert pipe.getvalue().count("\n") == 1 and "load      5 B " in pipe.getvalue()


def test_cached_is_said_if_all_of_it_was():
    stages = Stages(False, io.StringIO())
    assert stages.cached is None
    stages("compile", 0, 3, "")
    stages("compile", 6, 6, "cached")
    assert stages.cached is True
    stages("compile", 2, 2, "a unit")
    stages("compile", 2, 2, "cached")
    assert stages.cached is False


def test_the_last_part_is_not_named_at_the_end():
    pipe = io.StringIO()
    stages = Stages(True, pipe)
    stages("compile", 3, 3, "unit.cpp")
    stages("compile", 2, 2, "cached")
    stages("compile", 4, 4, "program")
    stages("compile", 1, 1, "one.cpp")
    first, second, third, fourth = pipe.getvalue().splitlines()
    assert "unit" not in first and "cached" in second
    assert "program" not in third and "one" not in fourth


def test_bar():
    assert bar(5, 10) == "[##########----------]"
    assert bar(99, 10) == "[####################]" and bar(1, 0) == "[--------------------]"


def test_closing_line():
    told = Timings(512, 0, 512 / 812.4, 0.63, 128, 127 / 41.7)
    assert closing_line(told, 900_000_000, True) == (
        "prompt 512 tok, 812.4 tok/s | first token 0.63 s | 128 tok, 41.7 tok/s"
        " | peak 900.0 MB | compiled: cached"
    )
    told = Timings(12, 11, 0.1, 0.1, 1, 0.0)
    assert closing_line(told, 0, None) == (
        "prompt 12 tok (11 reused), 10.0 tok/s | first token 0.10 s | 1 tok"
    )
