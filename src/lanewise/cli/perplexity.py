"""lanewise perplexity: how well a model predicts a text.

Definition: exp of the mean, over the scored tokens, of -ln p(token | the tokens before it in its
window).  Windows of W tokens begin every S tokens; a window scores the tokens that no window
scored before, and never its own first token.  S = W: windows lie side by side.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from lanewise.cli import common, options
from lanewise.cli.progress import Stages
from lanewise.cli.tables import one_json, seconds
from lanewise.errors import RunError, UsageError

if TYPE_CHECKING:
    import numpy as np

    from lanewise.lane import Lane

_WINDOW = 512
_START = 1 << 18  # bytes of a text that are read at once
_ROWS = 64  # rows of logits that are widened to float64 at a time


@click.command("perplexity")
@options.model_argument
@click.argument("file")
@click.option(
    "-c",
    "--context",
    "window",
    type=options.Whole(2, options.BIG),
    help="Tokens of a window (W).  [default: 512, or the model's context if that is less]",
)
@click.option(
    "--stride",
    type=options.Whole(1, options.BIG),
    help="Tokens between windows (S), at most W.  [default: W]",
)
@click.option("--limit", type=options.Whole(1, options.BIG), help="Windows to score at most.")
@options.lane_options("context")
@options.json_option
@options.talk_options
def command(
    model: str,
    file: str,
    window: int | None,
    stride: int | None,
    limit: int | None,
    lane: options.LaneOptions,
    as_json: bool,
    live: bool | None,
) -> None:
    """Print the perplexity of MODEL on the text of FILE (a dash reads stdin, as it is).

    It is exp of the mean, over the scored tokens, of -ln p(token | the tokens before it in its
    window), sums in float64.  Windows of W tokens begin every S tokens; a window scores the
    tokens that no window scored before, and never its own first token.  The text is one run of
    tokens, as the model's tokenizer gives them, special tokens of the text not parsed; with
    --limit no more of it is read than the windows take.
    """
    if window is not None:
        stride = _stride(stride, window)
    lane = replace(lane, context=window)
    stages = Stages(live)
    began = time.perf_counter()
    try:
        with common.Text(file) as text, common.open_lane(model, lane, stages) as opened:
            stages.close()
            if window is None:
                window = min(_WINDOW, opened.context)
            stride = _stride(stride, window)
            ids = _ids(opened.tokenizer, text, limit and (limit - 1) * stride + window)
            if len(ids) < 2:
                raise UsageError(
                    "usage.text",
                    f"the text has {len(ids)} tokens; perplexity needs at least 2",
                    place=file,
                    remedy="give a longer text",
                )
            score = _score(opened, ids, window, stride, limit, as_json)
    finally:
        stages.close()
    took = time.perf_counter() - began
    value = math.exp(score["nll"])
    if as_json:
        extra = {"model": model, "file": file, "window": window, "stride": stride}
        extra |= {**common.in_force(lane), "seconds": round(took, 3)}
        one_json({"perplexity": value, **score, **extra})
    else:
        click.echo(f"perplexity {value:.4f} over {score['tokens']} tokens in {seconds(took)}")


def _ids(tokenizer: Any, text: common.Text, most: int | None) -> list[int]:
    """The ids of a text, or the first `most`, for which no more of it is read than they take."""
    size = _START + 8 * (most or 0)  # bytes: a token has about four
    while most:
        known, whole = text.start(size)
        if whole:
            return tokenizer.encode(known)[:most]
        if (ids := tokenizer.first(known, most)) is not None:
            return ids
        size *= 2
    return tokenizer.encode(text.start()[0])


def _stride(stride: int | None, window: int) -> int:
    if stride is None:
        return window
    if stride > window:
        raise click.BadParameter(
            f"{stride} is not in the range 1<=x<={window}.", param_hint="'--stride'"
        )
    return stride


def _score(
    lane: Lane, ids: Sequence[int], window: int, stride: int, limit: int | None, quiet: bool
) -> dict[str, Any]:
    """Mean of -ln p, its standard error, tokens and windows; prints the running value."""
    total = squares = 0.0
    tokens = 0
    spans = list(windows(len(ids), window, stride))[:limit]
    for i, (begin, first, end) in enumerate(spans):
        part = ids[begin:end]
        losses = nll(lane.logits(part), part)[first - begin - 1 :]
        if not math.isfinite(float(losses.sum())):
            raise RunError(
                "run.not_finite",
                "a logit is not finite",
                place=f"window {i}",
                remedy="try --activations f32; else the checkpoint is damaged",
            )
        total += float(losses.sum())
        squares += float((losses * losses).sum())
        tokens += len(losses)
        if not quiet:
            value = math.exp(total / tokens)
            click.echo(f"{i + 1}/{len(spans)}  {tokens} tokens  perplexity {value:.4f}")
    mean = total / tokens
    spread = max(squares / tokens - mean * mean, 0.0)
    return {
        "nll": mean,
        "nll_error": math.sqrt(spread / tokens),
        "tokens": tokens,
        "windows": len(spans),
    }


def windows(count: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """(begin, first token to score, end) of every window that scores at least one token."""
    scored = 0
    for begin in range(0, count, stride):
        end = min(begin + window, count)
        first = max(scored, begin + 1)
        if first < end:
            yield begin, first, end
        scored = max(scored, end)
        if end == count:
            return


def nll(logits: np.ndarray, ids: Sequence[int]) -> np.ndarray:
    """-ln p of ids[1:], float64 [T - 1], from logits [T, vocab]."""
    import numpy as np

    out = np.empty(len(ids) - 1, np.float64)
    for begin in range(0, len(out), _ROWS):
        rows = np.asarray(logits[begin : min(begin + _ROWS, len(out))], np.float64)
        rows = rows - rows.max(axis=1, keepdims=True)
        wanted = np.asarray(ids[begin + 1 : begin + 1 + len(rows)])
        chosen = rows[np.arange(len(rows)), wanted]
        out[begin : begin + len(rows)] = np.log(np.exp(rows).sum(axis=1)) - chosen
    return out
