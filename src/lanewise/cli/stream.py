"""Writing an answer as it comes: whole characters, at once, and safe for the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from lanewise.cli.progress import Stages

if TYPE_CHECKING:
    from lanewise.lane import Generation

# A model may write anything.  On a terminal only text reaches the screen: no control codes.
_CONTROL = {c: None for c in [*range(32), *range(127, 160)] if chr(c) not in "\n\t"}


def prepare() -> None:
    """Let stdout take any text: a character that it cannot write becomes a question mark."""
    stream: Any = sys.stdout
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")


def stream(generation: Generation, stages: Stages, *, show: bool = True) -> tuple[str, bool]:
    """Write pieces to stdout as they come.  Returns the whole text and whether Ctrl-C ended it."""
    prepare()
    clean = sys.stdout.isatty()
    pieces: list[str] = []
    interrupted = False
    try:
        for piece in generation:
            if not pieces:
                stages.close()
            pieces.append(piece)
            if show:
                sys.stdout.write(piece.translate(_CONTROL) if clean else piece)
                sys.stdout.flush()
    except KeyboardInterrupt:
        interrupted = True
    stages.close()
    text = "".join(pieces)
    ended = text.endswith("\n") if text else not interrupted
    if show and (not ended or (clean and interrupted)):  # a terminal shows ^C on the last line
        sys.stdout.write("\n")
        sys.stdout.flush()
    return text, interrupted or generation.finish_reason == "interrupted"
