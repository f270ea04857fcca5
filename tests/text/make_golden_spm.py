"""Writes golden_spm.json: small SentencePiece vocabularies and what SentencePiece makes of texts.

    pip install sentencepiece && python tests/text/make_golden_spm.py

Run by hand, not by the tests.  The corpus is made up; scores, kinds and ids are SentencePiece's.
"""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import sentencepiece as spm

HERE = Path(__file__).parent
CONFIGS = {
    "bytes": {"vocab_size": 700, "byte_fallback": True},
    "unknown": {"vocab_size": 420, "byte_fallback": False, "character_coverage": 0.985},
    "across words": {
        "vocab_size": 800,
        "byte_fallback": True,
        "split_by_whitespace": False,
        "add_dummy_prefix": False,
        "allow_whitespace_only_pieces": True,
    },
    "user-defined": {
        "vocab_size": 600,
        "byte_fallback": True,
        "user_defined_symbols": ["<sep>", "@@", "ab", "the", "  "],
        "allow_whitespace_only_pieces": True,
    },
}
WORDS = """
    a ab aba abab abc aaa aaaa aaaaa banana bandana the then there other mother brother lane lanes
    wise otherwise likewise compile compiler compiled program programs step steps state été élève
    naïf straße Übergröße мир привет 日本 日本語 世界 don't we've I'll 3.14 2026 100% def return
    x=1; f(x) != == <= -> // /* */ http://ex.org/a?b=c
""".split()  # noqa: SIM905


def corpus(rng: random.Random) -> list[str]:
    glue = [" ", " ", " ", " ", "  ", "", ", ", ". "]
    return ["".join(w + rng.choice(glue) for w in rng.choices(WORDS, k=12)) for _ in range(3000)]


def texts(rng: random.Random) -> list[str]:
    reference = json.loads((HERE.parent / "reference" / "smollm2_tokens.json").read_text())
    some = [case["text"] for case in reference["cases"]][::4]
    pieces = ["a", "b", "ab", "aa", "aaa", " ", "  ", "the", "@@", "<sep>", "▁", "é", "語", "\n"]
    pieces.append("<s>")
    made = ["".join(rng.choices(pieces, k=rng.randint(1, 14))) for _ in range(120)]
    words = ["".join(w + rng.choice(["", " "]) for w in rng.choices(WORDS, k=6)) for _ in range(60)]
    return list(dict.fromkeys(["", " ", "  ", "a", " a", "a ", "a" * 21, *some, *made, *words]))


def main() -> None:
    rng = random.Random(7)
    lines, cases = corpus(rng), texts(rng)
    golden = {}
    for name, config in CONFIGS.items():
        out = io.BytesIO()
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=out, model_type="bpe", minloglevel=2,
            normalization_rule_name="identity", remove_extra_whitespaces=False,
            **{"character_coverage": 1.0, **config},
        )  # fmt: skip
        model = spm.SentencePieceProcessor(model_proto=out.getvalue())
        n = model.vocab_size()
        kinds = [
            2 if model.is_unknown(i) else 3 if model.is_control(i) else 6 if model.is_byte(i)
            else 5 if model.is_unused(i) else 1
            for i in range(n)
        ]  # fmt: skip
        tokens = [model.id_to_piece(i) for i in range(n)]
        for symbol in config.get("user_defined_symbols", ()):
            i = model.piece_to_id(symbol.replace(" ", "▁"))
            kinds[i], tokens[i] = 4, symbol  # converters write user-defined blanks as blanks
        golden[name] = {
            "add_space_prefix": config.get("add_dummy_prefix", True),
            "tokens": tokens,
            "scores": [model.get_score(i) for i in range(n)],
            "kinds": kinds,
            "cases": [[text, model.encode(text)] for text in cases],
        }
    path = HERE / "golden_spm.json"
    path.write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
