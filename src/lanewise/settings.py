"""Every knob that the environment may set, in one table.

Laws: an explicit argument wins over the environment, the environment over the default; a value
is checked by the same rule wherever it comes from; a bad value is refused, never ignored.
Adding a knob is adding a row to `SETTINGS`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lanewise.errors import BuildError, LanewiseError, UsageError, collect

MAX_THREADS = 1022  # of a step: what the native pool can count (runtime.cpp)
MIN_TEMPERATURE = 1e-3  # besides 0: dividing logits by less leaves none finite


@dataclass(frozen=True)
class Setting:
    """One knob: its name, the kind of its value, its default, its variable and what it does.

    ``type`` is a key of `PARSERS` or, for a closed set, the words joined by ``|``.
    """

    name: str
    type: str
    default: Any
    env: str
    doc: str


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word in {"1", "true", "yes", "on"}:
        return True
    if word in {"", "0", "false", "no", "off"}:
        return False
    raise ValueError("one of 1, 0, true, false, yes, no, on, off")


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 2**31:
        raise ValueError("a whole number from 0 to 2147483647")
    return value


def _threads(text: str) -> int:
    try:
        value = _count(text)
    except ValueError:
        value = -1
    if not 0 <= value <= MAX_THREADS:
        raise ValueError(f"a whole number from 0 to {MAX_THREADS}")
    return value


def _power(text: str) -> int:
    try:
        value = _count(text)
    except ValueError:
        value = 0
    if value < 1 or value & (value - 1):
        raise ValueError("a power of two (1, 2, 4, ...)")
    return value


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _path(text: str) -> Path:
    if not text.strip() or "\0" in text:
        raise ValueError("a path")
    return Path(text).expanduser()


PARSERS: dict[str, Callable[[str], Any]] = {
    "bool": _boolean,
    "count": _count,
    "power": _power,
    "threads": _threads,
    "names": _names,
    "path": _path,
    "text": str.strip,
}

SETTINGS: tuple[Setting, ...] = (
    Setting("activations", "int8x2|int8|f32", "int8x2", "LANEWISE_ACTIVATIONS",
            "precision of the activations that meet quantised weights"),
    Setting("cache_dir", "path", None, "LANEWISE_CACHE_DIR",
            "folder for models, packed weights and compiled programs"),
    Setting("context", "count", 0, "LANEWISE_CONTEXT",
            "positions of a lane; 0: the smaller of the model's and 4,096"),
    Setting("cxx", "text", "", "LANEWISE_CXX",
            "compiler to use instead of the ziglang wheel's clang"),
    Setting("hold", "names", (), "LANEWISE_HOLD",
            "fusion rules held back, separated by commas; all: every rule"),
    Setting("isa", "auto|avx512|avx2|neon_i8mm|neon_dotprod|neon|scalar", "auto", "LANEWISE_ISA",
            "instruction set of the CPU kernels; auto: the best that this machine has"),
    Setting("kv", "f16|f32|q8_0", "f16", "LANEWISE_KV",
            "type of the cached keys and values"),
    Setting("max_chunk", "power", 512, "LANEWISE_MAX_CHUNK",
            "rows of the largest prefill chunk; 1: decode steps only"),
    Setting("offline", "bool", False, "LANEWISE_OFFLINE",
            "never touch the network"),
    Setting("speculate", "auto|off|0|1|2|3|4|5|6|7", "auto", "LANEWISE_SPECULATE",
            "tokens guessed from what the text repeats; auto: as many as pay; never changes it"),
    Setting("threads", "threads", 0, "LANEWISE_THREADS",
            "threads of a step; 0: one for each core that this process may use"),
    Setting("tune", "auto|off", "auto", "LANEWISE_TUNE",
            "choose figures that change no result by measuring, when a model is first compiled"),
    Setting("weights_in", "memory|map", "memory", "LANEWISE_WEIGHTS_IN",
            "read the packed weights into memory, or map their file (cut while it is in use, it "
            "ends the process)"),
)

_BY_NAME = {setting.name: setting for setting in SETTINGS}


def parse(name: str, text: str) -> Any:
    """The value of the knob ``name`` that ``text`` says.

    Raises `UsageError` ``usage.setting``: the knob is unknown, or the text is no value of it.
    """
    return _parse(_row(name), text, place=name)


def get(name: str) -> Any:
    """The knob's value: the environment's if its variable is set and not empty, else the default.

    Raises `UsageError` ``usage.setting``: the knob is unknown, or its variable is no value of it.
    """
    row = _row(name)
    text = os.environ.get(row.env, "")
    return _parse(row, text, place=row.env) if text.strip() else row.default


def check() -> None:
    """Raise `UsageError` ``usage.setting`` for variables that are no value of their knobs, also of
    those that nobody would ask for (all are told)."""
    errors: list[LanewiseError] = []
    for row in SETTINGS:
        try:
            get(row.name)
        except UsageError as error:
            errors.append(error)
    collect(errors)


def resolve(name: str, value: Any = None) -> Any:
    """An explicit ``value`` (checked when it is text), or what `get` says when it is None."""
    if value is None:
        return get(name)
    return parse(name, value) if isinstance(value, str) else value


def _row(name: str) -> Setting:
    row = _BY_NAME.get(name)
    if row is None:
        raise UsageError(
            "usage.setting", f"there is no setting {name!r}", remedy=f"known: {', '.join(_BY_NAME)}"
        )
    return row


def _parse(row: Setting, text: str, place: str) -> Any:
    try:
        if row.type in PARSERS:
            return PARSERS[row.type](text)
        if text.strip().lower() in row.type.split("|"):
            return text.strip().lower()
        raise ValueError(f"one of {', '.join(row.type.split('|'))}")
    except ValueError as error:
        raise UsageError(
            "usage.setting",
            f"{text!r} is not {error}",
            place=place,
            remedy=f"{row.doc}; default {row.default!r}",
        ) from None


def cache_path() -> Path:
    """Where the cache folder is; it may not exist, and need not be writable to be read."""
    path = get("cache_dir")
    if path is None:
        import platformdirs

        path = Path(platformdirs.user_cache_dir("lanewise", appauthor=False))
    return path


def cache_dir() -> Path:
    """The cache folder, made if it is missing, and writable.

    Raises `BuildError` ``build.cache``: it cannot be made or written (a read-only home, say).
    """
    path = cache_path()
    try:
        path.mkdir(parents=True, exist_ok=True)
        reason = "" if os.access(path, os.W_OK | os.X_OK) else "it cannot be written"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        if path.exists() and not path.is_dir():
            reason = "it is no folder"
    if reason:
        raise BuildError(
            "build.cache",
            f"no cache folder: {reason}",
            place=str(path),
            remedy="set LANEWISE_CACHE_DIR to a folder that can be written",
        )
    return path
