"""The demo model's vocabulary, read by the `gguf` package: independent of our own reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lanewise.text.tokenizer import Tokenizer


def gguf_metadata(path: Path) -> dict[str, Any]:
    """All metadata of a GGUF file, by the `gguf` package."""
    import gguf

    return {key: field.contents() for key, field in gguf.GGUFReader(str(path)).fields.items()}


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> tuple[dict[str, Any], Tokenizer]:
    """The demo model's metadata and tokenizer."""
    meta = gguf_metadata(smollm2_path)
    return meta, Tokenizer.from_metadata(meta)
