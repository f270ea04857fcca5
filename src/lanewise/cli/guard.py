"""The last line of defence: every exception becomes one message on stderr and an exit code.

    usage (click's, or code usage.*)  2      Ctrl-C  130      a closed pipe  1, silently
    text for a closed stdout          1
    LanewiseError                     1      the system's errors, and bugs   1
    SIGTERM, SIGHUP                  143, 129, after what is half done was taken back

A message has the code, the place and the remedy.  LANEWISE_DEBUG=1 adds the traceback.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import click

from lanewise.errors import LanewiseError, Refused

FAILED, USAGE, INTERRUPTED = 1, 2, 130

_REMEDIES = {
    errno.ENOSPC: "free disk space, or set LANEWISE_CACHE_DIR to a folder on another disk",
    errno.EDQUOT: "free disk space, or set LANEWISE_CACHE_DIR to a folder on another disk",
    errno.EROFS: "set LANEWISE_CACHE_DIR to a folder that can be written",
    errno.EACCES: "check the file's permissions, or set LANEWISE_CACHE_DIR to a folder of yours",
    errno.EPERM: "check the file's permissions, or set LANEWISE_CACHE_DIR to a folder of yours",
    errno.EBADF: "let the output go somewhere: > FILE, or > /dev/null",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path",
    errno.ELOOP: "check the path: its symbolic links lead in a circle",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
    errno.EISDIR: "give the path of a file",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENOMEM: "free memory, or give a smaller context (-c)",
}


def arm() -> None:
    """Have what ends a process from outside end it as Ctrl-C does: compilers and downloads that
    it started are ended, its temporary files go.  Signals that the caller ignores stay ignored."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _ended)


def open_streams() -> None:
    """A standard stream that the caller has closed is None to Python: have it lead nowhere, but
    refuse what stdout would lose."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # It also takes the stream's number, which the next file that is opened would have.
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 (until the end)
            setattr(sys, name, Closed(stream) if name == "stdout" else stream)


class Closed(io.TextIOBase):
    """A stdout that was closed before we began: it refuses text, so that none is lost silently."""

    def __init__(self, place: object) -> None:
        self._place = place

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        if not isinstance(text, str):  # click asks so whether a stream takes bytes
            raise TypeError("text is wanted")
        if text:
            raise OSError(errno.EBADF, "the output is closed, and would be lost", "stdout")
        return 0


def _ended(number: int, _: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # once is enough
    raise SystemExit(128 + number)


def leave(run: Callable[[], Any]) -> NoReturn:
    """Run, and leave the process's Python through SystemExit with the right code."""
    open_streams()
    try:
        code = run()
        sys.stdout.flush()
    except BaseException as error:
        if isinstance(error, (SystemExit, GeneratorExit)):
            raise
        raise SystemExit(report(error)) from None
    raise SystemExit(code if isinstance(code, int) else 0)


def report(error: BaseException) -> int:
    """Print what there is to say about an error, and return its exit code."""
    if isinstance(error, BrokenPipeError):
        return _closed_pipe()
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        # If Ctrl-C came inside of an `exec` (dataclasses use it), CPython would remember that and
        # end by a signal in spite of our code; any other `exec` makes it forget.
        exec("")
        return INTERRUPTED
    if os.environ.get("LANEWISE_DEBUG", "") not in ("", "0"):
        import traceback

        _say("".join(traceback.format_exception(error)).rstrip())
    if isinstance(error, click.ClickException):
        error.show(file=sys.stderr)
        return error.exit_code
    _say(describe(error))
    return exit_code(error)


def exit_code(error: BaseException) -> int:
    """The exit code of a refusal, or of another failure."""
    usage = isinstance(error, LanewiseError) and error.code.split(".")[0] == "usage"
    return USAGE if usage else FAILED


def describe(error: BaseException) -> str:
    """The message of an error: code, place, what is wrong, and what to do."""
    if isinstance(error, Refused):
        return "\n".join(_lines(e.code, e.message, e.place, e.remedy) for e in error.errors)
    if isinstance(error, LanewiseError):
        return _lines(error.code, error.message, error.place, error.remedy)
    if isinstance(error, OSError):
        place = str(error.filename) if error.filename is not None else ""
        remedy = _REMEDIES.get(error.errno or 0, "")
        if not place and error.errno in (errno.ENOSPC, errno.EDQUOT):  # stdout's disk, not ours
            remedy = "free disk space where the output goes"
        return _lines("system", error.strerror or str(error), place, remedy)
    if isinstance(error, MemoryError):
        return _lines("memory", "out of memory", "", _REMEDIES[errno.ENOMEM])
    return _lines(
        "internal",
        f"{type(error).__name__}: {error}",
        "",
        "this is a bug: run again with LANEWISE_DEBUG=1 and report what it prints",
    )


def _lines(code: str, message: str, place: str, remedy: str) -> str:
    from lanewise.cli.tables import printable

    where = f"{place}: " if place else ""
    text = f"error[{code}]: {where}{message}"
    if remedy:
        text += f"\n  remedy: {remedy}"
    return printable(text, keep="\n")


def _say(text: str) -> None:
    with suppress(OSError, ValueError):  # stderr closed too: the exit code is all that is left
        print(text, file=sys.stderr, flush=True)


def _closed_pipe() -> int:
    """The reader has gone.  Point stdout at nothing, so that Python's last flush is quiet."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
    return FAILED
