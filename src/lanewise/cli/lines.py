"""Reading what a user says: an editor with history on a terminal, plain lines from a pipe.

A text of several lines begins with three quotes and ends with three quotes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lanewise.cli import common
from lanewise.errors import LanewiseError

if TYPE_CHECKING:
    from prompt_toolkit.history import History

Reader = Callable[[], str]
"""Gives the next message; raises EOFError at the end, KeyboardInterrupt at Ctrl-C, and UsageError
usage.encoding of a message whose bytes are not UTF-8."""

QUOTES = '"""'


def reader() -> Reader:
    """The reader for this stdin."""
    line = _editor() if sys.stdin.isatty() and sys.stdout.isatty() else _plain
    return lambda: _message(line)


def _message(line: Callable[[str], str]) -> str:
    """The next message, whole, so that a refused one leaves no rest.  UsageError usage.encoding."""
    text = _whole(line)
    common.check_argument("message", text)
    return text


def _whole(line: Callable[[str], str]) -> str:
    first = line(">>> ")
    if not first.lstrip().startswith(QUOTES):
        return first
    rest = first.lstrip().removeprefix(QUOTES)
    parts: list[str] = []
    while not rest.rstrip().endswith(QUOTES):
        parts.append(rest)
        try:
            rest = line("... ")
        except EOFError:  # the text ends with the input
            return "\n".join(parts).strip("\n")
    parts.append(rest.rstrip().removesuffix(QUOTES))
    return "\n".join(parts).strip("\n")


def _plain(_: str) -> str:
    raw: Any = getattr(sys.stdin, "buffer", None)
    if raw is None:
        text = sys.stdin.readline()
    else:
        text = raw.readline().decode("utf-8", "surrogateescape")  # `_message` refuses them
    if not text:
        raise EOFError
    return text.removesuffix("\n").removesuffix("\r")


def _editor() -> Callable[[str], str]:
    from prompt_toolkit import PromptSession

    session: PromptSession[str] = PromptSession(history=_history())
    return lambda prompt: session.prompt(prompt)


def _history() -> History:
    """The history file in the cache folder, or memory where there is none to write."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    from lanewise import settings

    with suppress(OSError, LanewiseError):
        path = settings.cache_dir() / "chat_history"
        with path.open("ab"):
            pass
        with suppress(OSError):
            path.chmod(0o600)
        return FileHistory(str(path))
    return InMemoryHistory()
