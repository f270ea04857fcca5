"""Lane: an opened model.  Text in, text out; everything else is in its forms and its program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lanewise.closing import Closing
from lanewise.errors import UsageError
from lanewise.lane.form import Form
from lanewise.lane.generate import Generation, TextStream, check_stops
from lanewise.lane.runner import Runner
from lanewise.lane.sampling import MAX_TOKENS, Sampling, check_count
from lanewise.lane.spec import ModelSpec
from lanewise.lane.speculate import VERIFY, Drafting
from lanewise.lane.tune import Tuned

if TYPE_CHECKING:
    from lanewise.lane.profile import Profile

Message = Mapping[str, Any]
ANSWER = 512  # tokens: the room that a remedy leaves for an answer of no given length


class Text(Protocol):
    """What a lane needs of a checkpoint's tokenizer and chat template."""

    @property
    def tokenizer(self) -> Any:
        """`encode(text, special=False) -> list[int]`, `decode(ids) -> str`."""
        ...

    @property
    def end_tokens(self) -> frozenset[int]: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    def prompt(self, text: str) -> list[int]:
        """A plain prompt: special tokens not parsed, the checkpoint's first token added."""
        ...

    def least(self, asked: str | Sequence[Message]) -> int:
        """A number of tokens that `prompt` or `chat` give at least, known at once."""
        ...

    def chat(self, messages: Sequence[Message]) -> list[int]:
        """The chat template's text, special tokens parsed."""
        ...

    def stream(self, *, continued: bool) -> TextStream: ...


class Lane(Closing):
    """A model compiled and loaded; made by `lanewise.compile`.  A context manager.

    spec: the hyperparameters.  forms: name -> Form.  program: its `text` and `identity`.
    tokenizer: `encode(text, special=False)`, `decode(ids)`.  context: positions that it holds.
    threads: that run a step.  tuned: figures chosen by measurement, which change no bit."""

    def __init__(
        self,
        *,
        spec: ModelSpec,
        runner: Runner,
        text: Text,
        forms: Mapping[str, Form],
        program: Any,
        threads: int,
        speculate: str | int = "off",
        timed: Callable[[str, int | None, int], Profile] | None = None,
        tuned: Tuned | None = None,
        close: Callable[[], object] = lambda: None,
    ) -> None:
        self.spec, self.program, self.threads = spec, program, threads
        self.forms: Mapping[str, Form] = MappingProxyType(forms)  # grows: "logits", "verify"
        self._runner, self._text, self._close = runner, text, close
        self._speculate = speculate
        self._timed = timed
        self.tuned = tuned or Tuned()

    @property
    def tokenizer(self) -> Any:
        return self._text.tokenizer

    @property
    def notes(self) -> tuple[str, ...]:
        """What had to be supposed of the checkpoint's text side, for people; builds it."""
        return self._text.notes

    @property
    def context(self) -> int:
        """Positions that prompt and answer may take together."""
        return self._runner.context

    @property
    def chunk(self) -> int:
        """Rows of a prompt that run at once: 1 to the compiled max_chunk; changes no bit."""
        return self._runner.chunk

    @chunk.setter
    def chunk(self, rows: int) -> None:
        self._runner.chunk = rows

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = None,
        temperature: float = 0.8,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        seed: int | None = None,
        stop: str | Sequence[str] | None = (),
        speculate: str | int | None = None,
    ) -> Generation:
        """Continue a prompt: text (special tokens are not parsed in it) or token ids.

        temperature 0 takes the most likely token; top_k 0, top_p 1 and min_p 0 are off; a seed
        (0 to 2^63 - 1) makes the text repeatable; `stop` strings end the text before them;
        max_tokens is from 1; None writes until the model ends or the context is full.  speculate
        (default: as compiled) never changes the text: "auto" guesses tokens from what repeats when
        that is faster, "off" does not, a number guesses so many whenever something repeats.

        Raises UsageError "usage.option", "usage.prompt", "usage.token", "usage.context"; while it
        runs RunError "run.not_finite".

            for piece in lane.generate("Once upon a time", max_tokens=64): print(piece, end="")
        """
        self._check_open()
        sampling = Sampling.checked(temperature, top_k, top_p, min_p, seed)
        if isinstance(prompt, str):
            self._runner.check_least(self._text.least(prompt))
            prompt = self._text.prompt(prompt)
        return self._generation(prompt, sampling, max_tokens, stop, speculate, continued=True)

    def chat(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int | None = None,
        temperature: float = 0.8,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        seed: int | None = None,
        stop: str | Sequence[str] | None = (),
        speculate: str | int | None = None,
    ) -> Generation:
        """Answer a conversation, [{"role": "user", "content": "..."}, ...], by the checkpoint's
        chat template (a content may be a list of text parts); options and errors as `generate`,
        and TextError "text.*" of the template.

            print(lane.chat([{"role": "user", "content": "Hi"}], temperature=0).read())
        """
        self._check_open()
        sampling = Sampling.checked(temperature, top_k, top_p, min_p, seed)
        self._runner.check_least(self._text.least(messages))
        ids = self._text.chat(messages)
        return self._generation(ids, sampling, max_tokens, stop, speculate, continued=False)

    def _generation(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        max_tokens: int | None,
        stop: str | Sequence[str] | None,
        speculate: str | int | None,
        *,
        continued: bool,
    ) -> Generation:
        if max_tokens is not None:
            max_tokens = check_count("max_tokens", max_tokens, 1, MAX_TOKENS)
        wanted = self._speculate if speculate is None else speculate
        ids = self._runner.check(ids, ANSWER if max_tokens is None else max_tokens)
        return Generation(
            self._runner,
            ids,
            self._text.stream(continued=continued),
            sampling,
            end_tokens=self._text.end_tokens,
            max_tokens=max_tokens,
            stop=check_stops(stop),
            drafting=Drafting.checked(wanted),
        )

    def logits(self, token_ids: Sequence[int], *, chunk: int | None = None) -> NDArray[np.float32]:
        """The logits after each token, f32 [T, vocab]; its form is compiled when first asked for.

        `chunk` tokens run at once (default: as many as the form holds); it changes no bit.
        Raises UsageError "usage.token", "usage.context", RunError "run.not_finite", "run.memory"
        (the result alone does not fit)."""
        from lanewise.runtime.memory import require

        self._check_open()
        if chunk is not None:
            chunk = check_count("chunk", chunk, 1, 1 << 20)
        ids = self._runner.check(token_ids)
        require(4 * len(ids) * self.spec.vocab, f"the logits of {len(ids)} tokens")
        out = np.empty((len(ids), self.spec.vocab), np.float32)
        for at, rows in self._runner.logits(ids, chunk):
            out[at : at + len(rows)] = rows
        return out

    def profile(self, form: str = "decode", *, rows: int | None = None, depth: int = 0) -> Profile:
        """The time of every launch of a form ("decode", "prefill", "verify"), on `rows` rows
        (default: its capacity) after `depth` positions; forgets what the cache holds.

        Compiles a variant of the form's program.  Raises UsageError "usage.form",
        "usage.option"."""
        self._check_open()
        known = (*self.forms, VERIFY)
        if self._timed is None or form not in known:
            raise UsageError(
                "usage.form",
                f"the lane has no form {form!r}",
                place="form",
                remedy=f"forms: {', '.join(dict.fromkeys(known))}",
            )
        return self._timed(form, rows, depth)

    def reset(self) -> None:
        """Forget what the cache holds (results never depend on it; times do)."""
        self._runner.forget()

    def close(self) -> None:
        """Give back threads and memory, after what another thread runs; twice is fine."""
        self._runner.close(self._close)

    def _check_open(self) -> None:
        self._runner.check_open()

    def __repr__(self) -> str:
        state = ", closed" if self._runner.closed else ""
        return f"<Lane {self.spec.name or self.spec.architecture}, {self.context} positions{state}>"
