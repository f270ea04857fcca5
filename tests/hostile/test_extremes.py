"""Extreme but legal use, and wrong types from Python."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lanewise as lw
from lanewise.fuse.rules import RULES
from tests.hostile.conftest import TINY, environment, lanewise

PROMPT = "the hat in a hut"


@pytest.fixture(scope="module")
def lane(compiled: Path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LANEWISE_CACHE_DIR", str(compiled))
        with lw.compile(TINY, threads=1) as opened:
            yield opened


def ids(lane: Any, prompt: Any, **options: Any) -> list[int]:
    generation = lane.generate(prompt, **{"temperature": 0, "max_tokens": 3, **options})
    generation.read()
    assert generation.finish_reason in ("stop", "length", "context")
    return generation.ids


LEGAL: dict[str, Callable[[Any], list[int]]] = {
    "one token": lambda lane: ids(lane, [5]),
    "one byte": lambda lane: ids(lane, "x"),
    "the whole context": lambda lane: ids(lane, [5] * lane.context),
    "the whole context, without end": lambda lane: ids(lane, [5] * lane.context, max_tokens=None),
    "all but one": lambda lane: ids(lane, [5] * (lane.context - 1), max_tokens=None),
    "one page": lambda lane: ids(lane, [5] * 64),
    "a page and one": lambda lane: ids(lane, [5] * 65),
    "NumPy ids": lambda lane: ids(lane, np.array([5, 6], np.uint16)),
    "emoji": lambda lane: ids(lane, "👩‍👩‍👧‍👦🏳️‍🌈"),
    "zero bytes": lambda lane: ids(lane, "a\0b\0\0"),
    "the last character": lambda lane: ids(lane, "\U0010ffff\ufffe"),
    "names of control tokens": lambda lane: ids(lane, "<|im_end|><|endoftext|>"),
    "right to left": lambda lane: ids(lane, "\u202eשלום\u202c"),
    "the hottest": lambda lane: ids(lane, [5], temperature=1e30, top_k=0, top_p=1, min_p=0, seed=1),
    "the coldest": lambda lane: ids(lane, [5], temperature=1e-3, seed=1),
    "top_k of 1": lambda lane: ids(lane, [5], temperature=9, top_k=1, seed=1),
    "top_k of all": lambda lane: ids(lane, [5], temperature=9, top_k=(1 << 32) - 1, seed=1),
    "top_p of almost nothing": lambda lane: ids(lane, [5], temperature=9, top_p=1e-300, seed=1),
    "min_p of 1": lambda lane: ids(lane, [5], temperature=9, min_p=1, seed=1),
    "the largest seed": lambda lane: ids(lane, [5], temperature=9, seed=(1 << 63) - 1),
    "a thousand stops": lambda lane: ids(lane, [5], stop=["q" * n for n in range(1, 1001)]),
    "a stop of a million": lambda lane: ids(lane, [5], stop="q" * 1_000_000),
    "logits of one": lambda lane: lane.logits([5]).argmax(1).tolist(),
    "logits of all": lambda lane: lane.logits([5] * lane.context).argmax(1).tolist(),
    "an empty message": lambda lane: (
        list(lane.chat([{"role": "user", "content": ""}], max_tokens=1, temperature=0).read())
        or [0]
    ),
}


@pytest.mark.parametrize("name", LEGAL)
def test_legal(lane, name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = LEGAL[name](lane)
    assert found
    lane.reset()
    assert LEGAL[name](lane) == found


def test_what_cold_and_narrow_choices_choose(lane):
    best = ids(lane, [5], max_tokens=1)
    for name in ("the coldest", "top_k of 1", "top_p of almost nothing", "min_p of 1"):
        assert LEGAL[name](lane)[:1] == best, name


REFUSED: dict[str, tuple[str, Callable[[Any], object]]] = {
    "no text": ("usage.prompt", lambda lane: lane.generate("")),
    "no ids": ("usage.prompt", lambda lane: lane.generate([])),
    "None": ("usage.token", lambda lane: lane.generate(None)),
    "a number": ("usage.token", lambda lane: lane.generate(5)),
    "bytes": ("usage.token", lambda lane: lane.generate(b"the hat")),
    "lists of lists": ("usage.token", lambda lane: lane.generate([[5]])),
    "a matrix": ("usage.token", lambda lane: lane.generate(np.ones((2, 2), int))),
    "texts": ("usage.token", lambda lane: lane.generate(["the", "hat"])),
    "an id below": ("usage.token", lambda lane: lane.generate([-1])),
    "an id beyond": ("usage.token", lambda lane: lane.generate([lane.spec.vocab])),
    "an id of 70 bits": ("usage.token", lambda lane: lane.generate([1 << 70])),
    "half a surrogate": ("text.unicode", lambda lane: lane.generate("a\ud800b")),
    "one more than the context": (
        "usage.context",
        lambda lane: lane.generate([5] * (lane.context + 1)),
    ),
    "no logits": ("usage.prompt", lambda lane: lane.logits([])),
    "logits of more than the context": (
        "usage.context",
        lambda lane: lane.logits([5] * (lane.context + 1)),
    ),
    "chunks of nothing": ("usage.option", lambda lane: lane.logits([5], chunk=0)),
    "a chunk that is text": ("usage.option", lambda lane: setattr(lane, "chunk", "4")),
    "a chunk of one and a half": ("usage.option", lambda lane: setattr(lane, "chunk", 1.5)),
    "tokens below none": ("usage.option", lambda lane: lane.generate([5], max_tokens=-1)),
    "no tokens": ("usage.option", lambda lane: lane.generate([5], max_tokens=0)),
    "a negative seed": ("usage.option", lambda lane: lane.generate([5], seed=-1)),
    "a seed of 64 bits": ("usage.option", lambda lane: lane.generate([5], seed=1 << 63)),
    "half a token": ("usage.option", lambda lane: lane.generate([5], max_tokens=0.5)),
    "NaN": ("usage.option", lambda lane: lane.generate([5], temperature=float("nan"))),
    "infinity": ("usage.option", lambda lane: lane.generate([5], temperature=float("inf"))),
    "hotter than a float": ("usage.option", lambda lane: lane.generate([5], temperature=1e39)),
    "an empty stop": ("usage.option", lambda lane: lane.generate([5], stop="")),
    "no messages": ("text.messages", lambda lane: lane.chat([])),
    "messages that are text": ("text.messages", lambda lane: lane.chat("hi")),
    "a message without content": ("text.messages", lambda lane: lane.chat([{"role": "user"}])),
    "half a surrogate in a message": (
        "text.unicode",
        lambda lane: lane.chat([{"role": "user", "content": "\ud800"}]),
    ),
    "a message of bytes": (
        "text.messages",
        lambda lane: lane.chat([{"role": "user", "content": b"x"}]),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(lane, name):
    code, call = REFUSED[name]
    with pytest.raises(lw.LanewiseError) as caught:
        call(lane)
    assert caught.value.code == code and caught.value.remedy


TEXTS = {"words": "word " * 200_000, "one letter": "x" * 1_000_000, "blanks": " " * 1_000_000,
         "lines": "\n" * 1_000_000, "emoji": "😀" * 250_000, "digits": "7" * 1_000_000,
         "control names": "<|im_start|>" * 80_000, "Chinese": "日本語" * 110_000}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_a_million_bytes_are_too_much_quickly(lane, name):
    calls = [lambda: lane.generate(TEXTS[name])]
    if name in ("words", "control names"):
        calls = [lambda: lane.chat([{"role": "user", "content": TEXTS[name]}])]
    for call in calls:
        begin = time.process_time()
        with pytest.raises(lw.LanewiseError) as caught:
            call()
        assert caught.value.code in ("usage.context", "text.too_long")
        assert time.process_time() - begin < 3


def test_logits_that_do_not_fit(lane, monkeypatch):
    from lanewise.runtime import memory

    monkeypatch.setattr(memory, "available", lambda: 1000)
    with pytest.raises(lw.RunError) as caught:
        lane.logits([5] * lane.context)
    assert caught.value.code == "run.memory" and "128 tokens" in str(caught.value)


def test_a_generation_that_outlives_its_lane(compiled, monkeypatch):
    monkeypatch.setenv("LANEWISE_CACHE_DIR", str(compiled))
    with lw.compile(TINY, threads=1) as lane:
        generation = lane.generate([5], temperature=0)
    with pytest.raises(lw.LanewiseError) as caught:
        next(generation)
    assert caught.value.code in ("run.closed", "usage.closed") and caught.value.remedy
    for call in (lambda: lane.generate([5]), lambda: lane.logits([5]), lambda: lane.chat([])):
        with pytest.raises(lw.UsageError) as caught:
            call()
        assert caught.value.code == "usage.closed"
    lane.close()


def run(cache: Path, *args: str, stdin: bytes = b"", **env: str) -> tuple[list[int], str]:
    """(ids, why it ended) of the command line's greedy answer."""
    ran = lanewise("run", str(TINY), "--raw", "--temp", "0", "--json", *args, stdin=stdin,
                   env=environment(cache, **env))  # fmt: skip
    assert ran.code == 0 and not ran.err, ran.err
    record = json.loads(ran.out)
    return record["ids"], record["finish_reason"]


@pytest.fixture(scope="module")
def expected(compiled: Path) -> list[int]:
    return run(compiled, PROMPT, "-n", "12", "-t", "1")[0]


@pytest.mark.parametrize("args", [
    *(f"-t {n}" for n in (2, 3, 4, 5)), "-c 127", "-c 100", "-c 65 -t 2", "-c 24",
    "LANEWISE_WEIGHTS_IN=map", "LANEWISE_MAX_CHUNK=1", "LANEWISE_MAX_CHUNK=8192",
])  # fmt: skip
def test_how_it_is_run_changes_no_token(compiled, expected, args):
    words = args.split() + ([] if "-t" in args else ["-t", "1"])
    env = dict(w.split("=") for w in words if "=" in w)
    found, reason = run(compiled, PROMPT, "-n", "12", *(w for w in words if "=" not in w), **env)
    assert (found, reason) == (expected, "length")


def test_a_full_context_says_so(compiled, expected):
    found, reason = run(compiled, PROMPT, "-t", "1", "-c", "16")
    assert reason == "context" and found == expected[:5]  # 12 of prompt; the last needs no room
    assert run(compiled, "x", "-t", "1", "-c", "1")[1] == "context"


@pytest.mark.slow
@pytest.mark.parametrize("rule", [rule.name for rule in RULES])
def test_each_rule_held(compiled, expected, rule):
    assert run(compiled, PROMPT, "-n", "12", "-t", "1", "--hold", rule)[0] == expected


@pytest.mark.slow
@pytest.mark.parametrize("activations", ["int8x2", "int8", "f32"])
@pytest.mark.parametrize("kv", ["f16", "f32"])
def test_numerics(compiled, activations, kv):
    args = ("-t", "1", "-n", "12", "--activations", activations, "--kv", kv)
    found = run(compiled, PROMPT, *args)[0]
    assert found == run(compiled, PROMPT, *args, "-c", "70")[0] and len(found) == 12


@pytest.mark.parametrize("text", [
    "👩‍👩‍👧‍👦".encode(), b"a\0b", b"\xef\xbb\xbfwith a mark", b"a\r\nb", b"\x1b[2J",
], ids=["emoji", "zero byte", "byte order mark", "carriage returns", "escapes"])  # fmt: skip
def test_stdin(compiled, text):
    found = run(compiled, "-n", "4", "-t", "1", stdin=text)
    assert found == run(compiled, "-n", "4", "-t", "1", stdin=text + b"\n") and found[0]
