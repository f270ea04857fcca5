"""The seam between commands and the library: every command opens its lane here, by name at call
time, so that tests can put another in its place; and where texts come from."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from lanewise.cli.options import LaneOptions
from lanewise.errors import UsageError

if TYPE_CHECKING:
    from lanewise.lane import Lane
    from lanewise.lane.spec import ModelInfo

Progress = Callable[..., None]
LONGEST_PROMPT = 256 << 20  # bytes: a prompt without an end is refused before memory is full


def open_lane(model: str, options: LaneOptions, progress: Progress | None) -> Lane:
    """Compile `model` (a path or a name) and open it; what is None is left to the settings."""
    import lanewise

    _tell_of_threads(options.threads)
    return lanewise.compile(model, progress=progress, **asdict(options))


def _tell_of_threads(asked: int | None) -> None:
    """So many threads for each CPU that they do little but wait are asked for: say so, once."""
    import click

    from lanewise import settings
    from lanewise.runtime.cpus import available_cpus

    threads, cpus = int(settings.resolve("threads", asked)), available_cpus()
    if threads > 4 * cpus:
        click.echo(f"note: {threads} threads on {cpus} CPUs wait for one another; -t {cpus} is "
                   "what runs at once", err=True)  # fmt: skip


def in_force(options: LaneOptions) -> dict[str, Any]:
    """The numerics that the options ask for: the ones given, the environment's, the defaults."""
    from lanewise import settings

    return {name: settings.resolve(name, getattr(options, name)) for name in ("activations", "kv")}


def inspect_model(model: str, offline: bool | None, progress: Progress | None) -> ModelInfo:
    """What the checkpoint of `model` (a path or a name) holds; a name is pulled if need be."""
    import lanewise
    from lanewise.checkpoint import names

    return lanewise.inspect(names.resolve(model, offline=offline, progress=progress))


def peak_bytes() -> int:
    """The most memory that this process has held so far (resident), in bytes."""
    try:
        # Linux: ru_maxrss would include what the parent held before it started us.
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        pass
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def read_stdin(most: int = -1) -> str:
    """A prompt: all of stdin as text, without one last newline (a shell's echo adds it).

    Raises UsageError usage.encoding, usage.prompt where it has more than `most` bytes."""
    stream: Any = getattr(sys.stdin, "buffer", None) or sys.stdin
    try:
        data = stream.read(most + 1 if most >= 0 else -1)
        if len(data) > most >= 0:
            raise UsageError(
                "usage.prompt", f"the prompt has more than {most >> 20} MiB", place="stdin",
                remedy="give a shorter one: no model has room for so much",
            )  # fmt: skip
        text = data.decode("utf-8") if isinstance(data, bytes) else data
    except UnicodeDecodeError as error:
        raise _not_utf8("stdin", f"byte {error.start}") from None
    return text.removesuffix("\n").removesuffix("\r")


def check_argument(name: str, text: str | None) -> None:
    """Raises UsageError usage.encoding for a text whose bytes were not UTF-8 (Python decodes what
    is not to halves of surrogate pairs)."""
    try:
        (text or "").encode()
    except UnicodeEncodeError as error:
        raise _not_utf8(name, f"character {error.start}") from None


class Text:
    """A file's text, read as far as it is asked for; "-" is stdin, to the last byte as a file is.

    Raises OSError; when it is read, UsageError usage.encoding."""

    def __init__(self, path: str) -> None:
        self.place = "stdin" if path == "-" else path
        self._stdin = path == "-"
        self._file: Any = sys.stdin.buffer if self._stdin else open(path, "rb")  # noqa: SIM115
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._taken = 0
        self._text = ""

    def start(self, size: int = -1) -> tuple[str, bool]:
        """The first `size` bytes, or all, less a character that they cut; and whether it is all."""
        data = self._file.read(max(size - self._taken, 0) if size >= 0 else -1)
        whole = size < 0 or self._taken + len(data) < size
        begin = self._taken - len(self._decoder.getstate()[0])
        self._taken += len(data)
        try:
            self._text += self._decoder.decode(data, whole)
        except UnicodeDecodeError as error:
            raise _not_utf8(self.place, f"byte {begin + error.start}") from None
        return self._text, whole

    def close(self) -> None:
        if not self._stdin:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _not_utf8(place: str, where: str) -> UsageError:
    return UsageError(
        "usage.encoding",
        f"the text is not UTF-8 ({where})",
        place=place,
        remedy="convert it first, for example with iconv -t UTF-8",
    )
