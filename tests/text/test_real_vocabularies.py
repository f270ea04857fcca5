"""Real vocabularies against another implementation: `pip install splintr-rs` (it bundles them).

Skipped without it.  Its ranks are turned into a checkpoint's tokens and merges; its ids for the
nasty texts must be ours.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lanewise.text.bytelevel import ALPHABET
from lanewise.text.tokenizer import Tokenizer

splintr = pytest.importorskip("splintr")
pytestmark = pytest.mark.slow

REFERENCE = Path(__file__).parents[1] / "reference" / "smollm2_tokens.json"
#: The bundled vocabularies have chat tokens of their own, found in any text.
TEXTS = [c["text"] for c in json.loads(REFERENCE.read_text())["cases"] if "<|" not in c["text"]]
TEXTS += ["don't DON'T 'tis", "camelCaseWORDsHTMLParser", "\r\n\r\n \t\n  x\n\n", "!!!///\n\n/ a\n"]


def halves(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes] | None:
    """The last merge that makes a token: its bytes merged by all better ranks."""
    parts, own = [bytes([byte]) for byte in token], ranks[token]
    while len(parts) > 2:
        pairs = [(ranks.get(parts[i] + parts[i + 1], own), i) for i in range(len(parts) - 1)]
        rank, i = min(pairs)
        if rank >= own:
            return None
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return (parts[0], parts[1]) if len(parts) == 2 else None


def written(data: bytes) -> str:
    return "".join(ALPHABET[byte] for byte in data)


def token_bytes(other: Any, token: int) -> bytes:
    try:
        return other.decode_token_bytes(token)
    except ValueError:
        return b""


@pytest.mark.parametrize(("name", "pre"), [
    ("llama3", "llama-bpe"),
    ("cl100k_base", "smaug-bpe"),
    ("o200k_base", "gpt-4o"),
    ("mistral_v3", "tekken"),
    ("deepseek_v3", "deepseek-v3"),
])  # fmt: skip
def test_byte_level(name: str, pre: str) -> None:
    other = splintr.Tokenizer.from_pretrained(name)
    data = [token_bytes(other, token) for token in range(other.vocab_size)]
    ranks: dict[bytes, int] = {}
    for token, text in enumerate(data):
        ranks.setdefault(text, token)
    real = [bool(text) and ranks[text] == token for token, text in enumerate(data)]
    pairs = [halves(t, ranks) for t, r in zip(data, real, strict=True) if r and len(t) > 1]
    meta = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [
            written(text) if real[token] else f"<hole {token}>" for token, text in enumerate(data)
        ],
        "tokenizer.ggml.token_type": [1 if ok else 5 for ok in real],
        "tokenizer.ggml.merges": [f"{written(p[0])} {written(p[1])}" for p in pairs if p],
        "tokenizer.ggml.add_bos_token": False,
    }
    tokenizer = Tokenizer.from_metadata(meta)
    for text in TEXTS:
        assert tokenizer.encode(text) == other.encode_raw(text), text


@pytest.mark.parametrize("name", ["llama2", "mistral_v1", "codellama"])
def test_sentencepiece(name: str) -> None:
    other = splintr.Tokenizer.from_pretrained(name)
    tokens, kinds, scores = ["<unk>", "<s>", "</s>"], [2, 3, 3], [0.0] * 3
    for token in range(3, other.vocab_size):
        text = token_bytes(other, token).decode("utf-8", "replace").replace(" ", "▁")
        byte = token < 259
        tokens.append(f"<0x{token - 3:02X}>" if byte else text or f"<hole {token}>")
        kinds.append(6 if byte else 1 if text else 5)
        # Scores fall with the id; runs of blanks, which no merge of training made, come last.
        scores.append(-1e9 if not text.strip("▁") and len(text) > 1 else float(259 - token))
    meta = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": scores,
    }
    tokenizer = Tokenizer.from_metadata(meta)
    for text in TEXTS:
        ids = tokenizer.encode(text, add_bos=False)
        assert ids == other.encode_raw(text), text
        assert tokenizer.decode(ids) == text
