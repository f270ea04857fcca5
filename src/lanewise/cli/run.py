"""lanewise run: one prompt, one answer."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from lanewise.cli import common, options
from lanewise.cli.guard import INTERRUPTED
from lanewise.cli.progress import Stages, closing_line
from lanewise.cli.stream import stream
from lanewise.cli.tables import one_json
from lanewise.errors import UsageError

if TYPE_CHECKING:
    from lanewise.lane import Generation, Lane


@click.command("run")
@options.model_argument
@click.argument("prompt", required=False)
@click.option("--raw", is_flag=True, help="Continue the prompt as it is, without chat template.")
@click.option("--system", help="The system message.")
@options.sampling_options
@options.lane_options()
@options.json_option
@options.talk_options
def command(
    model: str,
    prompt: str | None,
    raw: bool,
    system: str | None,
    sampling: options.Sampling,
    lane: options.LaneOptions,
    as_json: bool,
    live: bool | None,
) -> int:
    """Answer PROMPT with MODEL (a .gguf file or a name).

    The prompt is read from stdin where none is given, or where it is a dash; one last newline is
    dropped.  Without a prompt on a terminal this is `lanewise chat`.  Text goes to stdout as it
    comes; stages, times and speed go to stderr.
    """
    if raw and system is not None:
        raise click.UsageError("--system is for the chat template: it cannot go with --raw.")
    if prompt is None and sys.stdin.isatty() and not raw and not as_json:
        from lanewise.cli.chat import converse

        return converse(model, system, sampling, lane, live)
    common.check_argument("PROMPT", prompt)
    common.check_argument("--system", system)
    text = common.read_stdin(common.LONGEST_PROMPT) if prompt is None or prompt == "-" else prompt
    if not (text if raw else text.strip()):
        raise UsageError(
            "usage.prompt", "the prompt is empty", remedy="give a prompt, or pipe one in"
        )
    stages = Stages(live)
    try:
        with common.open_lane(model, lane, stages) as opened:
            generation = _ask(opened, text, raw, system, sampling)
            answer, interrupted = stream(generation, stages, show=not as_json)
            _tell(generation, stages, interrupted)
            if as_json:
                one_json(_record(model, generation, answer, interrupted))
    finally:
        stages.close()
    return INTERRUPTED if interrupted else 0


def _ask(
    lane: Lane, text: str, raw: bool, system: str | None, sampling: options.Sampling
) -> Generation:
    if raw:
        return lane.generate(text, **asdict(sampling))
    messages = [{"role": "system", "content": system}] if system is not None else []
    return lane.chat([*messages, {"role": "user", "content": text}], **asdict(sampling))


def _tell(generation: Generation, stages: Stages, interrupted: bool) -> None:
    if generation.finish_reason == "context":
        stages.say("the context is full: give more room with -c")
    if generation.ids or not interrupted:
        stages.say(closing_line(generation.timings, common.peak_bytes(), stages.cached))


def _record(model: str, generation: Generation, text: str, interrupted: bool) -> dict[str, object]:
    told = generation.timings
    return {
        "model": model,
        "text": text,
        "ids": [int(i) for i in generation.ids],
        "finish_reason": "interrupted" if interrupted else generation.finish_reason,
        **asdict(told),
        "prompt_tokens_per_s": round(told.prompt_rate, 3),
        "tokens_per_s": round(told.rate, 3),
        "peak_bytes": common.peak_bytes(),
    }
