"""Fence: the end of a submission.

Laws: what was refused or went wrong comes back here, to everybody who waits; waiting may be broken
off by Ctrl-C; a fence keeps nothing of the plan alive.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from lanewise.closing import OfThisProcess
from lanewise.errors import LanewiseError, RunError, UsageError, call_site

_SLICE_S = 0.05  # native code does not see signals


class Thread(Protocol):
    """What runs submissions, each with a turn to ask for."""

    def posted(self, turn: Any) -> bool: ...
    def ended(self, turn: Any) -> bool: ...
    def wait(self, turn: Any, seconds: float) -> bool: ...


class Fence(OfThisProcess):
    """The end of a submission: `done`, and `wait`, which raises what went wrong."""

    __slots__ = ("_ended", "_thread", "_turn", "error")

    def __init__(self) -> None:
        self._ended = False
        self._thread: Thread | None = None
        self._turn: Any = None
        self.error: LanewiseError | None = None

    def begin(self, thread: Thread, turn: Any) -> None:
        """It is about to be posted, as a turn of a thread."""
        self._turn, self._thread = turn, thread

    def broken(self) -> None:
        """Posting it was broken off, before or after it was done."""
        if self._thread is None or not self._thread.posted(self._turn):
            self._ended = True

    def finish(self, error: LanewiseError | None = None) -> None:
        """It has ended, or was not begun."""
        self.error, self._ended = error, True

    @property
    def done(self) -> bool:
        """True once the submission has ended, well or not."""
        if not self._ended and self._thread is not None and self._thread.ended(self._turn):
            self._ended = True
        return self._ended

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the end.  Raises what the submission failed with, RunError ``run.timeout``
        after ``timeout`` seconds, or ``run.forked`` in a process that was forked meanwhile."""
        if timeout is not None and (
            isinstance(timeout, bool) or not isinstance(timeout, int | float | np.number)
        ):
            raise UsageError("usage.option", f"timeout is {timeout!r}", place=call_site(),
                             remedy="seconds, or None: wait to the end")  # fmt: skip
        if not self._ended:
            self._wait(timeout)
        if self.error is not None:
            raise self.error

    def _wait(self, timeout: float | None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        while not self.done:
            left = _SLICE_S if end is None else min(_SLICE_S, end - time.monotonic())
            if left <= 0:
                raise RunError("run.timeout", f"not done after {timeout} s", place=call_site(),
                               remedy="wait longer: the submission goes on")  # fmt: skip
            assert self._thread is not None
            if self._thread.wait(self._turn, left):
                self._ended = True


def failure(
    run: Callable[..., object], *args: Any, place: str = ""
) -> LanewiseError | None:
    """What a run ended with: None if it went well."""
    try:
        run(*args)
        return None
    except LanewiseError as error:
        return error
    except Exception as error:
        return RunError("run.failed", f"{type(error).__name__}: {error}", place=place,
                        remedy="this is a defect of lanewise: please report it")  # fmt: skip
