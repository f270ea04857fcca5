"""How text is cut into words before byte-level merging: one row per rule, its names beside it.

`tokenizer.ggml.pre` is only a name.  The names, and which share a rule, are facts of llama.cpp's
vocabulary loader (src/llama-vocab.cpp); the patterns are constants that the models' authors
published in their tokenizer.json files.  Where llama.cpp spells a pattern out for another regular
expression engine, the published one stands here, in Oniguruma's syntax.

Each pattern of a row cuts the pieces that the ones before it left: a match is a piece, and so is
the text between two matches.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from lanewise.errors import TextError


@dataclass(frozen=True)
class PreTokenizer:
    """One rule: its names, its patterns, and what else goes with them.

    ``whole_words``: a word that is a token is that token, whatever the merges would give.
    ``add_bos``: begin with BOS where the checkpoint does not say.  ``nfc``: compose first.
    """

    names: tuple[str, ...]
    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False
    nfc: bool = False


_SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"


def _cased(tail: str) -> str:
    """Capitals, then small letters, at least one of either: "camelCase" is two words."""
    head, upper, lower = (
        r"[^\r\n\p{L}\p{N}]?", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    )  # fmt: skip
    return f"{head}{upper}*{lower}+{tail}|{head}{upper}+{lower}*{tail}"


_MARKS_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_SUFFIX}|{_WORD}|\p{{N}}{{1,3}}|{_MARKS}|{_SPACES}"
_QWEN2 = rf"{_SUFFIX}|{_WORD}|\p{{N}}|{_MARKS}|{_SPACES}"
_QWEN35 = (
    rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_GPT4O = rf"{_cased(_SUFFIX + '?')}|\p{{N}}{{1,3}}|{_MARKS_SLASH}|{_SPACES}"
_TEKKEN = rf"{_cased('')}|\p{{N}}|{_MARKS_SLASH}|{_SPACES}"
_MINICPM5 = rf"{_SUFFIX}|{_WORD}|\p{{N}}+|{_MARKS}|{_SPACES}"
_SEED = rf"{_SUFFIX}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES
)
_YOUTU = rf"{_cased(_SUFFIX + '?')}|\p{{N}}|{_MARKS_SLASH}|{_SPACES}"
_BLOOM = " ?[^(\\s|.,!?…。，、।۔،)]+"
_CJK = "[一-龥぀-ゟ゠-ヿ]+"
_CJK_OLD = "[一-龥ࠀ-一가-퟿]+"
# Letters that have a case, in the Unicode of the day: deepseek-llm's own list, by code point.
_CASED_RANGES = """
    41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376-377 37B-37D 37F 386
    388-38A 38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD
    1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D
    1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3
    1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128
    212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183-2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE
    2CF2-2CF3 A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17
    FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2
    118A0-118DF 1E900-1E943
"""
_CASED_LETTERS = re.sub(r"\s+", "", re.sub(r"([0-9A-F]+)", r"\\x{\1}", _CASED_RANGES))
_DEEPSEEK_PUNCTUATION = r"\s?[!-/:-~！-／：-～‘-‟　-。]+"
_YOUTU_SCRIPTS = f"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|{_CJK}"
_DIGITS_3 = "[0-9][0-9][0-9]"
_FALCON_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|`]+"

PRETOKENIZERS: tuple[PreTokenizer, ...] = (
    PreTokenizer(
        ("default",),
        (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", _DIGITS_3),
    ),
    PreTokenizer(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b",
         "mellum2"),
        (r"\p{N}", _GPT2),
    ),
    PreTokenizer(
        ("gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "gigachat", "a.x-4.0", "mellum",
         "modern-bert", "trillion", "granite-docling", "jina-es", "jina-de", "jina-v2-es",
         "jina-v2-de", "jina-v1-en", "jina-v2-code", "roberta-bpe"),
        (_GPT2,),
    ),
    PreTokenizer(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
         "jina-v5-nano"),
        (_LLAMA3,),
        whole_words=True,
        add_bos=True,
    ),
    PreTokenizer(("smaug-bpe", "dbrx", "glm4", "chatglm-bpe"), (_LLAMA3,)),
    PreTokenizer(("qwen2", "megrez"), (_QWEN2,), nfc=True),
    PreTokenizer(
        ("stablelm2", "hunyuan", "solar-open", "grok-2", "deepseek-r1-qwen", "kormo", "f2llmv2"),
        (_QWEN2,),
    ),
    PreTokenizer(("qwen35",), (_QWEN35,), nfc=True),
    PreTokenizer(("laguna",), (r"[^\n]+|[\n]+", _QWEN2)),
    PreTokenizer(("ufakzeka",), (rf"{_WORD}|\p{{N}}|{_MARKS}|{_SPACES}",)),
    PreTokenizer(("minicpm5",), (r"\p{N}{1,3}", _MINICPM5), whole_words=True),
    PreTokenizer(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), (_GPT4O,)),
    PreTokenizer(("tekken",), (_TEKKEN,), whole_words=True, add_bos=True),
    PreTokenizer(("seed-coder",), (_SEED,)),
    PreTokenizer(("bailingmoe", "bailingmoe2", "llada-moe"), (_BAILING,)),
    PreTokenizer(
        ("deepseek-llm",),
        (r"[\r\n]", rf"\s?[{_CASED_LETTERS}]+", _DEEPSEEK_PUNCTUATION, r"\s+$", _CJK_OLD,
         r"\p{N}+"),
    ),
    PreTokenizer(
        ("deepseek-coder",), (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_OLD, r"\p{N}")
    ),
    PreTokenizer(
        ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), (r"\p{N}{1,3}", _CJK, _DEEPSEEK3)
    ),
    PreTokenizer(("youtu",), (_YOUTU_SCRIPTS, _YOUTU), whole_words=True),
    PreTokenizer(("falcon",), (_FALCON_PUNCTUATION, _GPT2, _DIGITS_3)),
    PreTokenizer(("poro-chat", "bloom", "gpt3-finnish"), (_BLOOM,)),
    PreTokenizer(("viking",), (_BLOOM, r"\p{N}")),
)

_BY_NAME = {name: row for row in PRETOKENIZERS for name in row.names}


def find(name: str) -> PreTokenizer:
    """The rule called ``name``.

    Raises `TextError` ``text.pretokenizer``: no such rule; the message names it, the remedy the
    known ones.
    """
    row = _BY_NAME.get(name)
    if row is None:
        near = difflib.get_close_matches(name[:80], _BY_NAME, n=2)
        hint = f"near it: {', '.join(near)}; " if near else ""
        raise TextError(
            "text.pretokenizer",
            f"the pre-tokenizer {name[:80]!r} is not known",
            place="tokenizer.ggml.pre",
            remedy=f"{hint}known: {', '.join(sorted(_BY_NAME))}",
        )
    return row
