"""Chat messages to a prompt, by the checkpoint's own template.

Laws: the template is a stranger's program and runs in a metered sandbox; it ends in text or in one
error; special tokens that it writes are those tokens, the same characters in a message are text;
where a checkpoint has no template, the one used instead is a note for the caller to report.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lanewise.errors import LanewiseError, TextError
from lanewise.text.tokenizer import Tokenizer, check_text

#: Used where a checkpoint has none: ChatML, which more models know than any other.
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_LONGEST = 1 << 17  # characters of a template; those in use have up to 30,000
_LARGEST = 1 << 22  # characters and items of all messages
_DEEPEST = 32
#: Unicode's noncharacters: not for interchange, so free to mark what must not be a special token.
_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


# A template that asks what its content is, or walks over it, reads parts itself.
_PARTS = re.compile(
    r"""content['"]?\]?\s*"""
    r"""(is\s+(not\s+)?(string|iterable|sequence|mapping)|\|\s*(selectattr|map))"""
    r"""|\bfor\s+\w+\s+in\s+[\w.\[\]'"]*content\b"""
)


class ChatTemplate:
    """A compiled chat template.

    ``source`` is its text; ``notes`` what the caller should report.

    Raises `TextError`: ``text.template`` (it is no valid template), ``text.template_limit`` (it is
    too large).
    """

    def __init__(
        self, source: str | None, bos: str = "", eos: str = "",
        now: Callable[[], datetime.datetime] = datetime.datetime.now,
    ) -> None:  # fmt: skip
        self.notes: tuple[str, ...] = ()
        if source is None:
            self.notes = ("the checkpoint has no chat template: ChatML is used",)
            source = CHATML
        if not isinstance(source, str):
            raise _broken(f"not a string but {type(source).__name__}")
        if len(source) > _LONGEST:
            raise _limit(f"{len(source)} characters are too many")
        self.source, self._bos, self._eos, self._now = source, bos, eos, now
        self._joined = _PARTS.search(source) is None
        self._template = self._compile()

    @classmethod
    def from_metadata(cls, meta: Mapping[str, Any], tokenizer: Tokenizer) -> ChatTemplate:
        """The template of a checkpoint, with its tokenizer's BOS and EOS (GGUF keys to values)."""
        template = cls(
            meta.get("tokenizer.chat_template"),
            tokenizer.text_of(tokenizer.bos), tokenizer.text_of(tokenizer.eos),
        )  # fmt: skip
        if template.notes and tokenizer.id_of("<|im_start|>") is None:
            template.notes += ("<|im_start|> is no token of this checkpoint: expect poor answers",)
        return template

    def render(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None, **variables: Any,
    ) -> str:  # fmt: skip
        """The prompt as text; ``variables`` are the template's own (``enable_thinking`` ...).
        Parts of text in a content are joined by newlines, unless the template reads parts itself.

        Raises `TextError`: ``text.messages`` (a message without a role, content that is no text,
        values that are no plain data), ``text.unicode`` (a lone surrogate),
        ``text.template_refused`` (the template's own refusal), ``text.template`` (it failed),
        ``text.template_limit`` (it wants too much time or memory).
        """
        return self._render(_values(self._parts(messages), add_generation_prompt, tools, variables))

    def encode(
        self, tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True, tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> list[int]:  # fmt: skip
        """The prompt as ids: special tokens from the template only, never from a message.

        Raises as `render` and `Tokenizer.encode`; ``text.template`` also where nothing comes out.
        """
        messages = self._parts(messages)
        values = _values(messages, add_generation_prompt, tools, variables)
        texts: list[str] = []
        _each_text(values, texts.append)
        mark = next((m for m in _MARKS if not any(m in text for text in texts)), None)
        if mark is None:
            raise _bad("", "the messages use every noncharacter of Unicode")
        shielded = _each_text(values, lambda text: tokenizer.shield(text, mark))
        text = self._render(shielded)
        if not text.replace(mark, ""):
            raise _broken("it makes nothing of these messages")
        return tokenizer.encode(text, special=True, shield=mark)

    def _parts(self, messages: Any) -> Any:
        """Messages whose parts of text are one text, where the template does not read parts."""
        _check_messages(messages)
        return [_one_text(m) for m in messages] if self._joined else messages

    def _compile(self) -> Any:
        from lanewise.text.sandbox import Sandbox

        functions = {"raise_exception": _refuse, "strftime_now": self._strftime}
        return _guarded(lambda: Sandbox(functions).from_string(self.source))

    def _render(self, values: dict[str, Any]) -> str:
        from lanewise.text.meter import METER, Meter

        values = {"bos_token": self._bos, "eos_token": self._eos, **values}
        token = METER.set(Meter())
        try:
            return _guarded(lambda: self._template.render(values))
        finally:
            METER.reset(token)

    def _strftime(self, form: object) -> str:
        """The time now; only plain conversions, as a width would make any amount of text."""
        form = str(form)[:200]
        if re.search(r"%[^a-zA-Z%]", form):
            raise _broken("strftime_now has a conversion with a width or a flag")
        return self._now().strftime(form)


def _guarded(call: Callable[[], Any]) -> Any:
    """What ``call`` gives; all that a template can throw becomes one TextError."""
    try:
        return call()
    except LanewiseError:
        raise
    except RecursionError:
        raise _limit("it is nested too deeply, or calls itself without end") from None
    except MemoryError:
        raise _limit("it wants too much memory") from None
    except Exception as error:
        line = getattr(error, "lineno", None) or _line_of(error)
        raise _broken(f"{type(error).__name__}: {error}"[:400], line) from error


def _line_of(error: BaseException) -> int | None:
    """The template's line in which it failed: Jinja2 rewrites the traceback to show it."""
    line, step = None, error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == "<template>":
            line = step.tb_lineno
        step = step.tb_next
    return line


_REMEDY = "give the prompt as plain text, or use another template"


def _broken(message: str, line: int | None = None) -> TextError:
    place = f"chat template, line {line}" if line else "chat template"
    return TextError("text.template", message, place=place, remedy=_REMEDY)


def _limit(message: str) -> TextError:
    return TextError("text.template_limit", message, place="chat template", remedy=_REMEDY)


def _refuse(message: object) -> None:
    """``raise_exception`` of templates."""
    raise TextError(
        "text.template_refused",
        str(message)[:400],
        place="chat template",
        remedy="change the messages: this model's template does not take them",
    )


def _bad(place: str, message: str, remedy: str = "") -> TextError:
    return TextError(
        "text.messages",
        message,
        place=place or "messages",
        remedy=remedy
        or 'a message is {"role": "user", "content": "text"}; other fields are plain data',
    )


def _values(
    messages: Any, add_generation_prompt: bool, tools: Any, variables: dict[str, Any]
) -> dict[str, Any]:
    """All that a template sees, checked and copied to plain data."""
    values = {"messages": messages, "tools": tools, **variables}
    left = [_LARGEST]
    plain = {key: _plain(value, key, left, 0) for key, value in values.items()}
    return {**plain, "add_generation_prompt": bool(add_generation_prompt)}


def _check_messages(messages: Any) -> None:
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise _bad("", f"not a list of messages but {type(messages).__name__}")
    if not messages:
        raise _bad("", "there are none")
    for i, message in enumerate(messages):
        place = f"messages[{i}]"
        if not isinstance(message, Mapping):
            raise _bad(place, f"not a message but {type(message).__name__}")
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not role:
            raise _bad(place, "the role is missing or is no string")
        if isinstance(content, str) or (content is None and "tool_calls" in message):
            continue
        if not isinstance(content, Sequence) or isinstance(content, bytes):
            raise _bad(place, "the content is missing or is no text")
        for j, part in enumerate(content):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            if kind != "text" or not isinstance(part.get("text"), str):
                raise _bad(
                    f"{place}.content[{j}]", f"a part of type {str(kind)[:40]!r} is no text",
                    'give parts of text alone, {"type": "text", "text": "..."}, or one string',
                )  # fmt: skip


def _one_text(message: Any) -> Any:
    content = message.get("content")
    if isinstance(content, str) or content is None:
        return message
    return {**message, "content": "\n".join(part["text"] for part in content)}


def _plain(value: Any, place: str, left: list[int], depth: int) -> Any:
    """A copy in lists, dicts, strings and numbers; ``left`` is what the whole may still weigh."""
    left[0] -= 1 + (len(value) if isinstance(value, str) else 0)
    if left[0] < 0:
        message = f"more than {_LARGEST} characters and items in all"
        raise TextError("text.messages", message, place=place, remedy="shorten the messages")
    if depth > _DEEPEST:
        raise _bad(place, f"nested more than {_DEEPEST} deep")
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        check_text(value, place)
        return str(value)
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise _bad(place, "a key is no string")
        for key in value:
            check_text(key, place)
        return {k: _plain(v, f"{place}.{k[:40]}", left, depth + 1) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [_plain(v, f"{place}[{i}]", left, depth + 1) for i, v in enumerate(value)]
    raise _bad(place, f"a {type(value).__name__} is no plain data")


def _each_text(value: Any, change: Callable[[str], Any]) -> Any:
    """A copy of plain data with every string changed; keys stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _each_text(item, change) for key, item in value.items()}
    return [_each_text(item, change) for item in value] if isinstance(value, list) else value
