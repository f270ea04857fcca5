"""Checkpoints: readers of model files, and the sidecar of what we computed from them."""

from __future__ import annotations

import os

from lanewise.checkpoint.source import Checkpoint


def open_checkpoint(path: str | os.PathLike[str], *, vocabulary_only: bool = False) -> Checkpoint:
    """Open a model file; what kind it is, its first bytes say.

    ``vocabulary_only`` allows a file without tensors.  Raises CheckpointError, codes
    ``checkpoint.*`` (see `lanewise.checkpoint.gguf_file`).
    """
    from lanewise.checkpoint.gguf import Gguf

    return Gguf(path, vocabulary_only=vocabulary_only)
