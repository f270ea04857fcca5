"""A GGUF checkpoint: one file, or the several that it was split into.

Laws: whichever part is named, all parts are opened, and they must agree; metadata is the first
part's; a tensor is in one part only.  The bytes are read by `lanewise.checkpoint.gguf_file`.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from lanewise.checkpoint.gguf_file import GgufFile, Stored
from lanewise.checkpoint.source import Metadata, TensorInfo
from lanewise.closing import Closing
from lanewise.errors import CheckpointError

_SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
_MOST_FILES = 1024
_STEP = 1 << 20  # bytes of the header hashed at a time
_SAMPLES, _SAMPLE = 16, 4096  # pieces of the data in the digest, and bytes of each


class Gguf(Closing):
    """An open GGUF checkpoint of one or several files; see `lanewise.checkpoint.source.Checkpoint`.

    >>> Gguf("no-such-file.gguf")
    Traceback (most recent call last):
    ...
    lanewise.errors.CheckpointError: no-such-file.gguf: no such file [checkpoint.missing]
      remedy: check the path
    """

    def __init__(self, path: str | os.PathLike[str], *, vocabulary_only: bool = False) -> None:
        """Open; ``vocabulary_only`` allows a file without tensors.

        Raises CheckpointError, see the module.
        """
        self._files: list[GgufFile] = []
        self._digest: str | None = None
        try:
            self._open(Path(path), vocabulary_only)
        except BaseException:
            self.close()
            raise
        first = self._files[0]
        self._path = first.path
        self.metadata = Metadata(first.entries, str(first.path))
        self._tensors = {name: t for file in self._files for name, t in file.tensors.items()}

    def _open(self, path: Path, vocabulary_only: bool) -> None:
        first = GgufFile(path, 0)
        self._files.append(first)
        entry = first.entries.get("split.count")
        parts = Metadata(first.entries, str(path)).u32("split.count") if entry else 1
        if parts > 1:
            self._open_parts(path, parts)
        if not vocabulary_only and not any(file.tensors for file in self._files):
            raise first.refuse("empty", "the file holds no tensors", "pass the model's file")

    def _open_parts(self, path: Path, count: int) -> None:
        """All files of a split checkpoint, whichever of them was named."""
        named = self._files[0]
        match = _SPLIT.fullmatch(path.name)
        if match is None or int(match[3]) != count or count > _MOST_FILES:
            raise named.refuse(
                "split", f"one of {count} files, but its name does not say which",
                f"name the files as they were: NAME-00001-of-{count:05}.gguf",
            )  # fmt: skip
        self._files.clear()
        named.close()
        seen: set[str] = set()
        for number in range(count):
            part = path.with_name(f"{match[1]}-{number + 1:05}-of-{match[3]}.gguf")
            file = GgufFile(part, number)
            self._files.append(file)
            meta = Metadata(file.entries, str(part))
            if meta.u32("split.no") != number or meta.u32("split.count") != count:
                raise file.refuse("split", f"says that it is not part {number} of {count}")
            if twice := seen & file.tensors.keys():
                raise file.refuse("duplicate", f"tensor {min(twice)!r} is in two files")
            seen |= file.tensors.keys()
        total = Metadata(self._files[0].entries, str(path)).u32("split.tensors.count", len(seen))
        if total != len(seen):
            raise self._files[0].refuse("split", f"{total} tensors announced, {len(seen)} found")

    @property
    def path(self) -> Path:
        """The file, or the first of several."""
        return self._path

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self._files)

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Tensors by name, in file order."""
        return MappingProxyType(self._tensors)

    @property
    def digest(self) -> str:
        """SHA-256 over each file's header, size, time of last change and samples of its data.

        The samples tell models apart that were trained on from one another: equal headers, and in
        images and archives equal times."""
        if self._digest is None:
            self._files[0].check_open()
            sha = hashlib.sha256()
            for file in self._files:
                sha.update(struct.pack("<QQQ", file.data_at, file.size, file.changed))
                for at in range(0, file.data_at, _STEP):
                    sha.update(file.read(at, min(_STEP, file.data_at - at), "the header"))
                last = max(file.data_at, file.size - _SAMPLE)
                for at in np.linspace(file.data_at, last, _SAMPLES).astype(np.int64).tolist():
                    sha.update(file.read(at, min(_SAMPLE, file.size - at), "the data"))
            self._digest = sha.hexdigest()
        return self._digest

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The tensor's bytes, uint8 [nbytes], read-only and mapped.

        Raises CheckpointError ``checkpoint.tensor`` if there is none, ``checkpoint.closed``.
        """
        found = self.stored(name)
        return found.file.bytes[found.info.offset : found.info.offset + found.nbytes]

    def stored(self, name: str) -> Stored:
        """The tensor's bytes, to be read in parts; raises as `raw`."""
        self._files[0].check_open()
        info = self._tensors.get(name)
        if info is None:
            raise CheckpointError(
                "checkpoint.tensor", f"no tensor {name!r}", place=str(self._path),
                remedy="the file holds another model or only a part of one",
            )  # fmt: skip
        return Stored(self._files[info.file], info)

    def close(self) -> None:
        """Let go of the files; arrays given out stay valid."""
        for file in self._files:
            file.close()
