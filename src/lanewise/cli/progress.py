"""Stages with their times, on stderr: one line each, live on a terminal, silent in a pipe.

    resolve   smollm2                                       2 ms
    download  [########------------]  38.1 / 92.4 MB
    compile   12/12                                        2.31 s

Drawn by hand: loading a library for it would cost a second start a tenth of its time.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from typing import TYPE_CHECKING, TextIO

from lanewise.cli.tables import printable, seconds, size

if TYPE_CHECKING:
    from lanewise.lane.generate import Timings

_BAR, _REDRAW_S, _BYTES_FROM = 20, 0.05, 1 << 16
_ERASE = "\r\x1b[K"
_PASSING = ("prompt", "bench")
_BYTES = ("pack", "load")  # counted in bytes however few


class Stages:
    """The progress callback: `stages(stage, done, total, detail)`, from any thread.

    `live=None` means: only if stderr is a terminal.  A stage ends when another begins (it leaves
    no line if nothing of it was done), when done reaches total, or at `close()`.  The stages
    "prompt" and "bench" leave no line: what follows tells of them.
    """

    def __init__(self, live: bool | None = None, stream: TextIO | None = None) -> None:
        self.stream = stream if stream is not None else sys.stderr
        self.terminal = self.stream.isatty()
        self.on = self.terminal if live is None else live
        self.cached: bool | None = None  # whether all of "compile" was (None: no word of it)
        self._lock = threading.Lock()
        self._stage = ""
        self._began = self._drawn = 0.0
        self._last = (0, 0, "")
        self._ended = ("", 0)

    def __call__(self, stage: str, done: int, total: int, detail: str = "") -> None:
        with self._lock:
            if stage == "compile" and done >= total:
                self.cached = detail == "cached" and self.cached is not False
            if not self.on or (done >= total > 0 and self._ended == (stage, total)):
                return  # (an end that is told twice is one end)
            now = time.perf_counter()
            if stage != self._stage:
                self._end(now, told=self._last[0] > 0 or not self._last[1])
                self._stage, self._began, self._drawn = stage, now, 0.0
            self._last = (done, total, detail)
            if total and done >= total:
                self._end(now)
            elif self.terminal and now - self._drawn >= _REDRAW_S:
                self._drawn = now
                self._write(_ERASE + self._line("")[: self._width()])

    def close(self) -> None:
        """End the stage under way; call before anything else is written to the terminal."""
        with self._lock:
            self._end(time.perf_counter())

    def say(self, text: str) -> None:
        """One line for the user, where stages are told."""
        if self.on:
            self.close()
            self._write(printable(text) + "\n")

    def _end(self, now: float, told: bool = True) -> None:
        if not self._stage:
            return
        erase = _ERASE if self.terminal else ""
        line = self._line(seconds(now - self._began))
        self._write(f"{erase}{line}\n" if told and self._stage not in _PASSING else erase)
        self._ended, self._stage = (self._stage, self._last[1]), ""

    def _line(self, took: str) -> str:
        done, total, detail = self._last
        # Once all of it is done, which part was the last is of no interest; "cached" is.
        parts = total > 1 or self._stage == "compile"
        text = "" if took and parts and detail != "cached" else printable(detail, limit=60)
        if total >= _BYTES_FROM or (total > 1 and self._stage in _BYTES):
            amount = size(total) if took else f"{bar(done, total)} {size(done)} / {size(total)}"
            text = f"{amount}  {text}"
        elif total > 1:
            text = f"{done}/{total}  {text}"
        line = f"{self._stage:<9} {text:<48} {took}".rstrip()
        narrow = self.terminal and len(line) > self._width()
        return f"{self._stage:<9} {text} {took}".rstrip() if narrow else line

    def _width(self) -> int:
        return shutil.get_terminal_size().columns - 1

    def _write(self, text: str) -> None:
        if text:
            self.stream.write(text)
            self.stream.flush()


def bar(done: int, total: int) -> str:
    """[#####-----]"""
    full = min(_BAR, _BAR * done // total) if total > 0 else 0
    return f"[{'#' * full}{'-' * (_BAR - full)}]"


def closing_line(told: Timings, peak: int, cached: bool | None) -> str:
    """What an answer cost, in one line; `peak` bytes (0: not known)."""
    prompt = f"prompt {told.prompt_tokens} tok"
    if told.reused:
        prompt += f" ({told.reused} reused)"
    parts = [f"{prompt}, {told.prompt_rate:.1f} tok/s"]
    parts.append(f"first token {seconds(told.first_token_s)}")
    answer = f"{told.tokens} tok"
    parts.append(f"{answer}, {told.rate:.1f} tok/s" if told.tokens > 1 else answer)
    if told.drafted:
        parts.append(f"guessed {told.accepted} of {told.drafted}")
    if peak:
        parts.append(f"peak {size(peak)}")
    if cached:
        parts.append("compiled: cached")
    return " | ".join(parts)
