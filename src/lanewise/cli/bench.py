"""lanewise bench: prompt and generation speed on this machine."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import click

from lanewise.cli import common, limits, options
from lanewise.cli.measure import Result, Work, measure, median
from lanewise.cli.progress import Stages
from lanewise.cli.tables import one_json, seconds, size, table


@click.command("bench")
@options.model_argument
@click.option(
    "-p",
    "--prompt",
    type=options.Whole(0, options.BIG),
    default=512,
    show_default=True,
    help="Tokens of the prompt; 0 leaves the test out.",
)
@click.option(
    "-n",
    "--generate",
    type=options.Whole(0, options.BIG),
    default=64,
    show_default=True,
    help="Tokens to write; 0 leaves the test out.",
)
@click.option(
    "-d",
    "--depth",
    type=options.Whole(0, options.BIG),
    default=0,
    show_default=True,
    help="Tokens in the cache before either test.",
)
@click.option(
    "-r",
    "--repeat",
    type=options.Whole(1, 1000),
    default=3,
    show_default=True,
    help="Runs of each test, after one to warm up.",
)
@click.option(
    "--limits/--no-limits",
    "ruled",
    default=True,
    help="Measure the machine too, and tell what share of it was reached.  [default: limits]",
)
@options.lane_options("context")
@options.json_option
@options.talk_options
def command(
    model: str,
    prompt: int,
    generate: int,
    depth: int,
    repeat: int,
    ruled: bool,
    lane: options.LaneOptions,
    as_json: bool,
    live: bool | None,
) -> None:
    """Measure how fast MODEL reads a prompt (pp) and writes (tg), in tokens per second.

    Medians over the runs; neither the tokenizer nor sampling is timed, and nothing is guessed
    (speculation is off).  Their limits are measured after them: writing reads every weight and
    the cache once a token, reading a prompt multiplies.  With --json the last line of stdout is
    one object: pp, tg (null if left out), prompt, generate, depth, threads, activations,
    first_token_s, peak_bytes, limits (10^9 a second), pp_of_limit, tg_of_limit,
    pp_macs_per_cycle (multiply-adds of a core, attention's included) and more.
    """
    if not prompt and not generate:
        raise click.UsageError("-p 0 with -n 0 leaves nothing to measure.")
    work = Work(prompt, generate, depth, repeat)
    lane = replace(lane, context=work.context)
    stages = Stages(live)
    began = time.perf_counter()
    try:
        with common.open_lane(model, lane, stages) as opened:
            open_s = time.perf_counter() - began
            stages.close()
            stages.on = False  # the lane must not draw while it is timed
            runs = Stages(live)
            result = measure(opened, work, lambda done, total: runs("bench", done, total))
            runs.close()
            chosen = {**common.in_force(lane), "threads": opened.threads}
            record = _record(model, work, chosen, result, open_s)
            cost = limits.work_of(opened, chosen["kv"], chosen["activations"])
    finally:
        stages.close()
    if ruled:
        found = limits.machine(record["threads"])
        told = limits.ratios(record, cost, found)
        record |= {"limits": found.record(), **{k: _rounded(v) for k, v in told.items()}}
    if as_json:
        one_json(record)
    else:
        _show(record, stages.cached)


def _record(
    model: str, work: Work, chosen: dict[str, Any], result: Result, open_s: float
) -> dict[str, Any]:
    return {
        "model": model,
        "pp": _rounded(median(result.pp)),
        "tg": _rounded(median(result.tg)),
        "prompt": work.prompt,
        "generate": work.generate,
        "depth": work.depth,
        "threads": chosen["threads"],
        "activations": chosen["activations"],
        "kv": chosen["kv"],
        "context": work.context,
        "first_token_s": _rounded(median(result.first_token_s), 6),
        "peak_bytes": common.peak_bytes(),
        "open_s": round(open_s, 4),
        "repeat": work.repeat,
        "pp_runs": [round(v, 3) for v in result.pp],
        "tg_runs": [round(v, 3) for v in result.tg],
        "limits": None,
        "pp_of_limit": None,
        "tg_of_limit": None,
        "pp_macs_per_cycle": None,
    }


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)


def _show(record: dict[str, Any], cached: bool | None) -> None:
    at = f" @ d{record['depth']}" if record["depth"] else ""
    rows = []
    for kind, count in (("pp", record["prompt"]), ("tg", record["generate"])):
        runs = record[f"{kind}_runs"]
        if runs:
            spread = f"{min(runs):.1f} - {max(runs):.1f}"
            share = record[f"{kind}_of_limit"]
            told = "" if share is None else f"{share:.2f}"
            macs = record["pp_macs_per_cycle"] if kind == "pp" else None
            cycle = "" if macs is None else f"{macs:.1f}"
            rows.append((f"{kind}{count}{at}", f"{record[kind]:.2f}", spread, told, cycle))
    click.echo(f"{record['model']}: {record['threads']} threads, {record['activations']}")
    ruled = bool(record["limits"])
    head = ("test", "tok/s", "range", *(("of limit", "MAC/cycle") if ruled else ("", "")))
    table(head, rows, right=(1, 2, 3, 4))
    parts = [f"first token {seconds(record['first_token_s'])}"]
    parts.append(f"opened in {seconds(record['open_s'])}" + (" (cached)" if cached else ""))
    parts.append(f"peak {size(record['peak_bytes'])}")
    click.echo(" | ".join(parts))
    if record["limits"]:
        from lanewise.runtime import ruler

        rates = record["limits"]
        clock = f"; {rates['clock']:.2f} GHz" if rates["clock"] else ""
        click.echo(
            f"limits: read {rates['read']:.1f} GB/s; 10^9 multiply-adds a second: "
            f"{ruler.shown(rates)}{clock}"
        )
