"""Small vocabularies for tests: made by hand, in the form of GGUF metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lanewise.text.bytelevel import ALPHABET
from lanewise.text.tokenizer import Tokenizer

#: Control tokens first, a user-defined one, then the 256 bytes, then what the merges make.
CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unk>"]
DEFINED = ["<think>"]
MERGES = ["a b", "ab c", "Ġ t", "h e", "Ġt he", "1 2", "Ġ Ġ", "ĠĠ ĠĠ", "Ċ Ċ", "a a", "aa aa"]
GOLDEN = json.loads(Path(__file__).with_name("golden_spm.json").read_text())


def byte_level_meta(pre: str = "smollm", **changes: Any) -> dict[str, Any]:
    """Metadata of a byte-level vocabulary; ``changes`` by short key, None leaves a key out."""
    tokens = [*CONTROLS, *DEFINED, *ALPHABET, *(merge.replace(" ", "") for merge in MERGES)]
    kinds = [3, 3, 3, 2, 4] + [1] * (len(tokens) - 5)
    short = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": kinds,
        "merges": MERGES,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "add_bos_token": False,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in short.items() if value is not None}


def byte_level(pre: str = "smollm", **changes: Any) -> Tokenizer:
    return Tokenizer.from_metadata(byte_level_meta(pre, **changes))


def byte_ids(text: str) -> list[int]:
    """Every byte of the text its own token, in `byte_level`."""
    return [len(CONTROLS) + len(DEFINED) + byte for byte in text.encode()]


def sentence_piece_meta(name: str = "bytes", **changes: Any) -> dict[str, Any]:
    """Metadata of a vocabulary of golden_spm.json."""
    golden = GOLDEN[name]
    short = {
        "model": "llama",
        "tokens": golden["tokens"],
        "scores": golden["scores"],
        "token_type": golden["kinds"],
        "add_space_prefix": golden["add_space_prefix"],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in short.items() if value is not None}


def sentence_piece(name: str = "bytes", **changes: Any) -> Tokenizer:
    return Tokenizer.from_metadata(sentence_piece_meta(name, **changes))
