"""The vocabulary that a checkpoint's metadata holds, read once and checked.

Laws: nothing here is trusted; lengths, types and ids are checked before any use, and what is wrong
is refused by its key.  What had to be supposed is a note, for the caller to report.
The keys and the kinds of token are those of the GGUF specification (ggml/docs/gguf.md).
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lanewise.errors import TextError
from lanewise.strings import Index, Strings

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

#: Tokens that end an answer, by their text: the ends of a turn or of a text in the model families
#: that we know of; and those that begin another file where a code model should have stopped.
END_TEXTS = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<｜end▁of▁sentence｜>", "[e~[", "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<|fim_repo|>",
    "<|repo_name|>", "<fim-repo>", "<reponame>", "<|file_sep|>",
})  # fmt: skip
#: The same, but plain text in some vocabularies (HTML): these count only as control tokens.
END_CONTROLS = frozenset({"</s>"})

_PREFIX = "tokenizer.ggml."


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id, with what the checkpoint says of them.

    ``ids`` the (first) id of a token's text; ``kinds`` int8 [n]; ``scores`` float32 [n] or None;
    ``merges`` in order of rank, as text, or None; ``bos``, ``eos``, ``unknown`` ids or None;
    ``eog`` ids that end an answer; ``add_bos`` and ``add_space_prefix`` None where the checkpoint
    does not say; ``swallowing`` ids of special tokens that take the white space after them along;
    ``notes`` what had to be supposed.
    """

    model: str
    pre: str | None
    tokens: Strings
    ids: Index
    kinds: np.ndarray
    scores: np.ndarray | None
    merges: Strings | None
    bos: int | None
    eos: int | None
    unknown: int | None
    eog: frozenset[int]
    add_bos: bool | None
    add_space_prefix: bool | None
    swallowing: frozenset[int]
    notes: tuple[str, ...]


_NONE = {"", "none", "no_vocab"}  # kinds that converters write where there is no vocabulary


def refuse(key: str, message: str, code: str = "text.vocabulary") -> TextError:
    """The error for a key of the metadata that cannot be used."""
    return TextError(
        code, message, place=key, remedy="the checkpoint is damaged or was converted wrongly"
    )


def read(meta: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary in ``meta``: GGUF keys to Python or NumPy values.

    Raises `TextError` ``text.vocabulary``, its place the key that is missing or wrong, and
    ``text.model`` where there is no vocabulary.
    """
    model = _text(meta, "model") or ""
    if model in _NONE:
        raise TextError(
            "text.model", f"the checkpoint has no vocabulary: {_PREFIX}model is "
            + (repr(model) if model else "missing"), place=_PREFIX + "model",
            remedy="convert it again with its vocabulary (Lane.logits runs without one)",
        )  # fmt: skip
    notes: list[str] = []
    tokens = _strings(meta, "tokens")
    if not tokens:
        raise refuse(_PREFIX + "tokens", "there are no tokens")
    n = len(tokens)
    ids = Index(tokens)
    if again := n - ids.distinct:
        notes.append(f"{again} tokens have the text of an earlier one; the first is used")
    kinds = _kinds(meta, n)
    merges = _strings(meta, "merges") if _PREFIX + "merges" in meta else None
    usual = _usual(kinds, meta, notes) if model == "llama" else {}
    bos, eos, unknown = (
        usual.get(key, _id(meta, key, n, notes))
        for key in ("bos_token_id", "eos_token_id", "unknown_token_id")
    )
    eog = _ends(meta, ids, kinds, eos, notes)
    return Vocabulary(
        model=model,
        pre=_text(meta, "pre"),
        tokens=tokens,
        ids=ids,
        kinds=kinds,
        scores=_scores(meta, n),
        merges=merges,
        bos=bos,
        eos=eos,
        unknown=unknown,
        eog=eog,
        add_bos=_flag(meta, "add_bos_token"),
        add_space_prefix=_flag(meta, "add_space_prefix"),
        swallowing=_swallowing(meta, tokens, kinds),
        notes=tuple(notes),
    )


def _swallowing(meta: Mapping[str, Any], tokens: Strings, kinds: np.ndarray) -> frozenset[int]:
    """Phi-3's tokenizer.json marks its special tokens so (rstrip); GGUF has no key for it."""
    name = str(meta.get("general.name", "")).lower()
    if "phi-3" not in name and "phi3" not in name:
        return frozenset()
    keeping = {"<unk>", "<s>", "<|endoftext|>"}
    control = np.flatnonzero(kinds == CONTROL).tolist()
    return frozenset(token for token in control if tokens[token] not in keeping)


def _text(meta: Mapping[str, Any], key: str) -> str | None:
    value = meta.get(_PREFIX + key)
    if value is None or isinstance(value, str):
        return value
    raise refuse(_PREFIX + key, f"not a string but {type(value).__name__}")


def _flag(meta: Mapping[str, Any], key: str) -> bool | None:
    value = meta.get(_PREFIX + key)
    if value is None or isinstance(value, (bool, np.bool_)):
        return None if value is None else bool(value)
    raise refuse(_PREFIX + key, f"not a truth value but {type(value).__name__}")


def _id(meta: Mapping[str, Any], key: str, n: int, notes: list[str]) -> int | None:
    """A token id, or None: not said, or said to be none (-1, 2**32 - 1)."""
    value = meta.get(_PREFIX + key)
    if value is None:
        return None
    try:
        number = -2 if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        number = -2
    if number in (-1, 2**32 - 1):
        notes.append(f"{_PREFIX}{key} says that there is none")
        return None
    if not 0 <= number < n:
        raise refuse(_PREFIX + key, f"{value!r:.40} is not the id of one of {n} tokens")
    return number


def _usual(kinds: np.ndarray, meta: Mapping[str, Any], notes: list[str]) -> dict[str, int]:
    """The ids that SentencePiece gives <unk>, <s> and </s>, for keys that the metadata lacks."""
    found = {}
    for token, key in enumerate(("unknown_token_id", "bos_token_id", "eos_token_id")):
        missing = meta.get(_PREFIX + key) is None and token < len(kinds)
        if missing and kinds[token] in (CONTROL, UNKNOWN):
            notes.append(f"{_PREFIX}{key} is missing: {token} is supposed")
            found[key] = token
    return found


def _strings(meta: Mapping[str, Any], key: str) -> Strings:
    value = meta.get(_PREFIX + key)
    if isinstance(value, Strings):
        return value
    if value is None:
        raise refuse(_PREFIX + key, "missing")
    try:
        strings = [] if isinstance(value, (str, bytes, Mapping)) else list(value)
    except TypeError:
        raise refuse(_PREFIX + key, f"not an array but {type(value).__name__}") from None
    other = set(map(type, strings)) - {str}
    if isinstance(value, (str, bytes, Mapping)) or other:
        kind = other.pop() if other else type(value)
        raise refuse(_PREFIX + key, f"not an array of strings: it holds {kind.__name__}")
    try:
        return Strings.of(strings)
    except UnicodeEncodeError:
        raise refuse(_PREFIX + key, "a string is not valid UTF-8") from None


def _numbers(meta: Mapping[str, Any], key: str, n: int, kinds: str) -> np.ndarray | None:
    """An array of n numbers whose NumPy kind is one of ``kinds``, or None."""
    value = meta.get(_PREFIX + key)
    if value is None:
        return None
    try:
        array = np.asarray(value if isinstance(value, np.ndarray) else list(value))
    except (TypeError, ValueError, OverflowError):
        array = np.zeros(0, object)
    if array.shape == (0,) and n:
        raise refuse(_PREFIX + key, "not an array of numbers")
    if array.ndim != 1 or array.dtype.kind not in kinds:
        raise refuse(_PREFIX + key, f"not an array of numbers but of {array.dtype}")
    if len(array) != n:
        raise refuse(_PREFIX + key, f"{len(array)} values for {n} tokens")
    return array


def _kinds(meta: Mapping[str, Any], n: int) -> np.ndarray:
    kinds = _numbers(meta, "token_type", n, "iu")
    if kinds is None:
        return np.full(n, NORMAL, np.int8)
    if kinds.min() < 0 or kinds.max() > BYTE:
        wrong = int(np.flatnonzero((kinds < 0) | (kinds > BYTE))[0])
        raise refuse(_PREFIX + "token_type", f"token {wrong} is of kind {kinds[wrong]}, not 0 to 6")
    return kinds.astype(np.int8)


def _scores(meta: Mapping[str, Any], n: int) -> np.ndarray | None:
    scores = _numbers(meta, "scores", n, "iuf")
    if scores is not None and np.isnan(scores).any():
        raise refuse(_PREFIX + "scores", "a score is not a number")
    with np.errstate(over="ignore"):  # files hold float32; a larger one is infinite
        return None if scores is None else scores.astype(np.float32)


def _ends(
    meta: Mapping[str, Any], ids: Index, kinds: np.ndarray, eos: int | None,
    notes: list[str],
) -> frozenset[int]:
    """Ids that end an answer: those that the metadata names, and the well-known texts."""
    n = len(kinds)
    told = {eos, _id(meta, "eot_token_id", n, notes), _id(meta, "eom_token_id", n, notes)}
    ends = {text: ids[text] for text in sorted(END_TEXTS) if text in ids}
    ends |= {t: ids[t] for t in END_CONTROLS if t in ids and kinds[ids[t]] == CONTROL}
    # Harmony: <|end|> closes a message, not the answer, where there are <|return|> or <|flush|>.
    if {"<|return|>", "<|call|>"} <= ends.keys() or "<|flush|>" in ends:
        ends.pop("<|end|>", None)
    for text, i in ends.items():
        if kinds[i] not in (CONTROL, UNUSED):
            notes.append(f"token {i} {text!r} ends an answer by its text, not by its kind")
            kinds[i] = CONTROL
    return frozenset(ends.values()) | frozenset(i for i in told if i is not None)
