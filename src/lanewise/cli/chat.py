"""lanewise chat: a conversation, with line editing, history and commands."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from lanewise.cli import common, options
from lanewise.cli.guard import INTERRUPTED, USAGE, describe, exit_code
from lanewise.cli.lines import Reader, reader
from lanewise.cli.progress import Stages, closing_line
from lanewise.cli.stream import stream
from lanewise.errors import LanewiseError, UsageError

if TYPE_CHECKING:
    from lanewise.lane import Lane

HELP = '''\
/system [TEXT]      show the system message, or set it (begins anew)
/clear              forget the conversation
/set [NAME [VALUE]] show the sampling options, or set one
/exit               leave (also /bye, /quit, Ctrl-D)
"""                 begins and ends a text of several lines
Ctrl-C              stops the answer'''


@click.command("chat")
@options.model_argument
@click.option("--system", help="The system message.")
@options.sampling_options
@options.lane_options()
@options.talk_options
def command(
    model: str,
    system: str | None,
    sampling: options.Sampling,
    lane: options.LaneOptions,
    live: bool | None,
) -> int:
    """Talk with MODEL (a .gguf file or a name).

    Lines are edited in place and kept in a history; /help lists the commands.  Lines piped in
    are answered one after another, and Ctrl-C ends them all; where one is refused the rest is
    answered, and the exit code is that of the first refusal.
    """
    return converse(model, system, sampling, lane, live)


def converse(
    model: str,
    system: str | None,
    sampling: options.Sampling,
    lane: options.LaneOptions,
    live: bool | None,
) -> int:
    """Open the model and talk until the user leaves; returns the exit code."""
    stages = Stages(live)
    try:
        with common.open_lane(model, lane, stages) as opened:
            stages.close()
            stages.say("/help lists the commands; Ctrl-D leaves")
            chat = Chat(opened, system, sampling, stages)
            chat.loop(reader())
    finally:
        stages.close()
    return INTERRUPTED if chat.ended else chat.code


class Chat:
    """The conversation so far and the options of the next answer."""

    def __init__(
        self, lane: Lane, system: str | None, sampling: options.Sampling, stages: Stages
    ) -> None:
        self.lane, self.sampling, self.stages = lane, sampling, stages
        self.system = system
        self.turns: list[dict[str, str]] = []
        self.alone = not sys.stdin.isatty()  # nobody is there to go on after Ctrl-C
        self.ended = False  # by Ctrl-C
        self.code = 0  # of the first refusal, where nobody is there to see it

    def loop(self, read: Reader) -> None:
        """Answer what is read until it ends or a command says so."""
        while True:
            try:
                text = read()
            except KeyboardInterrupt:
                if self.alone:
                    self.ended = True
                    return
                continue  # drops the line, as in a shell
            except EOFError:
                return
            except LanewiseError as error:
                self.refuse(describe(error), exit_code(error))
                continue
            if not text.strip():
                continue
            if text.lstrip().startswith("/") and "\n" not in text.strip():
                if not self.obey(text.strip()):
                    return
            else:
                self.answer(text)
                if self.ended:
                    return

    def answer(self, text: str) -> None:
        """Answer one message.  What was written before Ctrl-C stays part of the conversation."""
        asked = {"role": "user", "content": text}
        head = [{"role": "system", "content": self.system}] if self.system is not None else []
        try:
            generation = self.lane.chat([*head, *self.turns, asked], **asdict(self.sampling))
            answer, interrupted = stream(generation, self.stages)
        except LanewiseError as error:
            self.stages.close()
            if error.code == "usage.context" and self.turns:
                remedy = f"/clear begins anew; else {error.remedy}"
                error = UsageError(error.code, error.message, place=error.place, remedy=remedy)
            self.refuse(describe(error), exit_code(error))
            return
        except KeyboardInterrupt:
            self.stages.close()
            self.ended = self.alone
            return
        self.ended = self.alone and interrupted
        self.turns += [asked, {"role": "assistant", "content": answer}]
        if generation.finish_reason == "context":
            _say("the context is full: /clear begins anew; -c gives more room")
        if generation.ids:
            line = closing_line(generation.timings, common.peak_bytes(), self.stages.cached)
            self.stages.say(line)
            self.stages.cached = None  # once is enough

    def refuse(self, text: str, code: int = USAGE) -> None:
        """Say why a line is not done; the next one may be."""
        _say(text)
        if self.alone:
            self.code = self.code or code

    def obey(self, line: str) -> bool:
        """Do what a /command says; False to leave."""
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        if name in ("/exit", "/quit", "/bye"):
            return False
        if name in ("/help", "/?"):
            _say(HELP)
        elif name == "/clear":
            self.turns.clear()
            _say("forgotten")
        elif name == "/system":
            self._system(rest)
        elif name == "/set":
            self._set(rest.replace("=", " ").split())
        else:
            self.refuse(f"there is no command {name}; /help lists them")
        return True

    def _system(self, text: str) -> None:
        if text:
            self.system = text
            self.turns.clear()
        _say(f"system: {self.system}" if self.system is not None else "no system message")

    def _set(self, words: list[str]) -> None:
        flags = {flag.lstrip("-"): name for name, (flag, _, _) in options.SAMPLING.items()}
        given = words[0].lstrip("-") if words else ""
        name = flags.get(given, given.replace("-", "_"))  # also by the long names
        if len(words) > 2 or (words and name not in options.SAMPLING):
            names = ", ".join(flags)
            self.refuse(f"/set NAME VALUE; names: {names}; off unsets n and seed")
            return
        if len(words) == 2:
            off = words[1] == "off" and name in ("max_tokens", "seed")
            kind = options.SAMPLING[name][1]
            try:
                setattr(self.sampling, name, None if off else kind.convert(words[1], None, None))
            except click.UsageError as error:
                self.refuse(f"{words[0]}: {error.message}")
                return
        for flag, each in flags.items():
            if not words or each == name:
                unset = "auto" if each == "speculate" else "off"
                value = getattr(self.sampling, each)
                _say(f"{flag:<6} {unset if value is None else value}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
