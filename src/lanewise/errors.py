"""Every refusal, in one tree.

    LanewiseError
    ├── UsageError        a bad option or argument of the caller            usage.*
    ├── GraphError        a graph that is not legal                         graph.*
    ├── CheckpointError   a file that cannot be read as a checkpoint        checkpoint.*
    ├── ModelError        a model that we do not run                        model.*
    ├── TextError         a tokenizer or a chat template that fails         text.*
    ├── PlanError         a graph that a target cannot run                  plan.*
    ├── BuildError        the compiler, the cache, the disk                 build.*
    ├── RunError          something found while a program ran               run.*
    └── Refused           several of the above, collected                   refused

Codes are stable: programs may compare them.  A message says what is wrong, ``place`` where
(file, tensor, statement, option), ``remedy`` what to do about it.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def call_site() -> str:
    """file:line of the nearest frame outside lanewise, for refusals that name the caller."""
    frame = inspect.currentframe()
    while frame is not None and (
        frame.f_code.co_filename.startswith(_PACKAGE)
        or str(frame.f_globals.get("__name__")).startswith("lanewise.")  # what dataclasses write
    ):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""


class LanewiseError(Exception):
    """The root of all our errors; ``code`` is stable, ``place`` and ``remedy`` may be empty."""

    def __init__(self, code: str, message: str, *, place: str = "", remedy: str = "") -> None:
        self.code = code
        self.message = message
        self.place = place
        self.remedy = remedy
        super().__init__(str(self))

    def __str__(self) -> str:
        text = f"{self.place}: {self.message}" if self.place else self.message
        text = f"{text} [{self.code}]"
        return f"{text}\n  remedy: {self.remedy}" if self.remedy else text

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.code, self.message, self.place, self.remedy))


def _rebuild(
    kind: type[LanewiseError], code: str, message: str, place: str, remedy: str
) -> LanewiseError:
    """Errors travel between processes whole (the default would lose the keywords)."""
    error = kind.__new__(kind)
    LanewiseError.__init__(error, code, message, place=place, remedy=remedy)
    return error


class UsageError(LanewiseError):
    """A bad option or argument of the caller."""


class GraphError(LanewiseError):
    """A graph that is not legal, or an op that refuses its operands."""


class CheckpointError(LanewiseError):
    """A file that cannot be read as a checkpoint."""


class ModelError(LanewiseError):
    """A checkpoint that is sound, of a model that we do not run."""


class TextError(LanewiseError):
    """A tokenizer or a chat template that fails."""


class PlanError(LanewiseError):
    """A graph that a target cannot run."""


class BuildError(LanewiseError):
    """The compiler, the cache or the disk failed."""


class RunError(LanewiseError):
    """Something found while a program ran."""


class Refused(LanewiseError):
    """Several errors, collected; ``errors`` holds them in order."""

    def __init__(self, errors: Sequence[LanewiseError]) -> None:
        self.errors = tuple(errors)
        lines = "\n".join(f"  {i + 1}. {e}" for i, e in enumerate(self.errors))
        super().__init__("refused", f"{len(self.errors)} errors:\n{lines}")

    def __reduce__(self) -> tuple[object, ...]:
        return (Refused, (self.errors,))


def placed(error: LanewiseError, place: str) -> LanewiseError:
    """The same refusal at a place, where it has none; of several, each."""
    if isinstance(error, Refused):
        return Refused([placed(e, place) for e in error.errors])
    if error.place or not place:
        return error
    return _rebuild(type(error), error.code, error.message, place, error.remedy)


def collect(errors: Sequence[LanewiseError]) -> None:
    """Raise what was collected: nothing, the one error itself, or all of them as `Refused`."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise Refused(errors)
