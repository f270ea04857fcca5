"""Compiled lanes on the tiny golden models: right against PyTorch, equal bits however they run."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lanewise as lw
from lanewise.errors import RunError, UsageError
from lanewise.lane import Lane
from lanewise.lane.runner import Runner
from lanewise.lane.sampling import Sampling
from lanewise.lane.speculate import Pace
from tests.models.support import GOLDEN

LOGITS = np.load(GOLDEN / "logits.npz")
NAMES = [n for n in LOGITS.files if n not in ("tokens", "rows")]
IDS = [int(t) for t in LOGITS["tokens"]]
QUANTISED = ("llama_tied.q8_0", "qwen3_tied.q8_0")


@pytest.mark.parametrize("name", NAMES)
def test_reference_mode_is_pytorch(name: str) -> None:
    with lw.compile(GOLDEN / f"{name}.gguf", activations="f32", kv="f32", threads=2) as lane:
        found = lane.logits(IDS)[LOGITS["rows"]]
    assert np.abs(found - LOGITS[name]).max() <= 1e-5 * np.abs(LOGITS[name]).max()


def test_a_file_may_have_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/b\xffd.gguf"
    try:
        Path(os.fsdecode(path)).write_bytes((GOLDEN / f"{QUANTISED[0]}.gguf").read_bytes())
    except (OSError, UnicodeError):
        pytest.skip("no such names here")
    ids = []
    for name in (os.fsdecode(path), GOLDEN / f"{QUANTISED[0]}.gguf"):
        with lw.compile(name, threads=1) as lane:
            ids.append(list(lane.generate(IDS, max_tokens=4, temperature=0).ids))
            ids[-1] += [int(lane.logits(IDS).argmax())]
    assert ids[0] == ids[1]


@pytest.fixture(scope="module", params=QUANTISED)
def lane(request: pytest.FixtureRequest) -> Iterator[Lane]:
    with lw.compile(GOLDEN / f"{request.param}.gguf", threads=2) as opened:
        opened.name = request.param  # type: ignore[attr-defined]
        yield opened


def steps(lane: Lane, ids: list[int], chunk: int) -> np.ndarray:
    """The logits after the prompt and each of 6 greedy tokens, from the forms that generate."""
    lane.reset()
    lane.chunk = chunk
    g = lane.generate(ids, max_tokens=6, temperature=0)
    rows = []
    for _ in range(6):
        lane._runner.pace = Pace()  # no step has been timed: one token at a time
        first = not g.ids
        ports = lane._runner._prefill if first and chunk > 1 else lane._runner._decode
        g._step()
        rows.append(ports.logits[0].copy())
    return np.stack(rows)


def test_chunks_and_single_steps_are_the_same_bits(lane: Lane) -> None:
    ids = IDS[:53]  # no chunk below leaves one row over, so the form is known
    want = lane.logits(ids)
    for chunk in (1, 2, 3, 7, 50):
        assert np.array_equal(lane.logits(ids, chunk=chunk), want), chunk
    single = steps(lane, ids, 1)
    assert np.array_equal(single[0], want[-1])
    for chunk in (3, 7, 51, lane.forms["prefill"].capacity):
        assert np.array_equal(steps(lane, ids, chunk), single), chunk


def test_a_reused_prefix_is_the_same_bits(lane: Lane) -> None:
    lane.chunk = 16
    fresh = steps(lane, IDS[:40], 16)
    lane.reset()
    for stop in (3, 20, 34):
        lane.generate(IDS[:stop], max_tokens=3, temperature=0).read()
    g = lane.generate(IDS[:40], max_tokens=1, temperature=0)
    g.read()
    assert g.timings.reused == 34
    assert np.array_equal(lane._runner._prefill.logits[0], fresh[0])


def test_greedy_is_the_most_likely_token(lane: Lane) -> None:
    g = lane.generate(IDS[:9], max_tokens=12, temperature=0)
    g.read()
    assert g.ids == [int(r.argmax()) for r in lane.logits(g.prompt_ids + g.ids)][8:-1]


def test_seeds_repeat(lane: Lane) -> None:
    def ids(seed: int) -> list[int]:
        g = lane.generate(IDS[:5], max_tokens=20, temperature=1.5, top_k=0, top_p=1, seed=seed)
        g.read()
        return g.ids

    assert ids(3) == ids(3)
    assert len({tuple(ids(s)) for s in range(5)}) > 1


@pytest.mark.parametrize("options", [
    {"temperature": 0}, {"temperature": 1.3, "top_k": 0, "top_p": 1, "seed": 11},
], ids=("greedy", "drawn"))  # fmt: skip
def test_tokens_written_at_once_are_those_of_single_steps(
    lane: Lane, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for most in (1, 2, 5, 8):
        monkeypatch.setattr(Runner, "at_once", most)
        lane.reset()
        g = lane.generate(IDS[:9], max_tokens=40, speculate="off", **options)
        g.read()
        held = lane._runner.held
        assert held == (g.prompt_ids + g.ids)[: len(held)]
        after = lane.generate(g.prompt_ids + g.ids, max_tokens=1, temperature=0)
        after.read()
        assert after.timings.reused >= len(g.prompt_ids + g.ids) - 1
        found.append((g.ids, g.text, g.finish_reason, lane._runner._decode.logits[0].tobytes()))
    assert len(found[0][0]) > 8 and found == [found[0]] * 4


def test_an_end_token_is_the_last_that_is_written(lane: Lane) -> None:
    r, wild = lane._runner, Sampling(2.0, 0, 1.0, 0.0)
    draws = [0.1, 0.9, 0.4, 0.7, 0.2, 0.99, 0.5, 0.3]
    lane.reset()
    ids = IDS[:9]
    ids.append(r.next_token(ids, wild, 0.6))
    want = r.write(ids, wild, draws, frozenset())
    at = max(i for i in range(7) if want[i] not in want[:i])
    assert at > 2
    r.next_token(ids[:-1], wild, 0.6)
    told = r.write(ids, wild, draws, frozenset({want[at], 1 << 20}))
    assert told == want[: at + 1] and r.held == ids + told[:-1]


@pytest.mark.parametrize("options", [
    {"threads": 1}, {"threads": 3}, {"hold": "all"}, {"max_chunk": 4}, {"max_chunk": 1},
    {"context": 77},
], ids=str)  # fmt: skip
def test_nothing_of_how_changes_a_bit(lane: Lane, options: dict[str, object]) -> None:
    path = GOLDEN / f"{lane.name}.gguf"  # type: ignore[attr-defined]
    with lw.compile(path, **{"threads": 2, **options}) as other:  # type: ignore[arg-type]
        assert np.array_equal(other.logits(IDS), lane.logits(IDS))
        assert np.array_equal(steps(other, IDS[:50], 1), steps(lane, IDS[:50], 1))


def test_logits_leave_the_cache_for_generate(lane: Lane) -> None:
    lane.logits(IDS[:20])
    g = lane.generate(IDS[:30], max_tokens=1, temperature=0)
    g.read()
    assert g.timings.reused == 20


def test_the_context_is_a_wall(lane: Lane) -> None:
    assert lane.context == 128
    g = lane.generate(IDS[:60], temperature=0, max_tokens=None)
    g._end_tokens = frozenset()
    g.read()
    assert g.finish_reason == "context" and len(g.ids) == 69
    with pytest.raises(UsageError) as e:
        lane.logits([1] * 129)
    assert e.value.code == "usage.context"


def test_what_a_lane_shows(lane: Lane) -> None:
    from lanewise.ir.text import parse_graph

    assert set(lane.forms) >= {"decode", "prefill"}
    form = lane.forms["decode"]
    assert (form.kind, form.capacity) == ("decode", 1)
    assert parse_graph(form.source) == form.graph
    assert form.io["tokens"] == "input u32[1]" and form.io["next"] == "output u32[1]"
    assert form.io["k"].startswith("state f16") and form.io["rows"].startswith("scalar")
    assert lane.program.identity in lane.program.text
    assert form.plan.explain()
    assert lane.spec.architecture in ("llama", "qwen3")


@pytest.mark.parametrize(("options", "code", "place"), [
    ({"context": 129}, "usage.context", "context"), ({"context": 0}, "usage.option", "context"),
    ({"max_chunk": 3}, "usage.option", "max_chunk"), ({"kv": "q8_0"}, "usage.option", "kv"),
    ({"activations": "int4"}, "usage.option", "activations"),
    ({"threads": 0}, "usage.option", "threads"), ({"batch": 2}, "usage.option", "batch"),
    ({"hold": "no_such_rule"}, "usage.hold", None), ({"hold": 5}, "usage.option", "hold"),
    ({"hold": [5]}, "usage.option", "hold"), ({"progress": 5}, "usage.option", "progress"),
])  # fmt: skip
def test_bad_options(options: dict[str, object], code: str, place: str | None) -> None:
    with pytest.raises(UsageError) as e:
        lw.compile(GOLDEN / "llama_tied.q8_0.gguf", **options)  # type: ignore[arg-type]
    assert e.value.code == code and e.value.remedy
    assert place is None or e.value.place == place


def test_progress_tells_every_stage() -> None:
    told: list[str] = []
    with lw.compile(
        GOLDEN / "llama_tied.q8_0.gguf", progress=lambda stage, *rest: told.append(stage)
    ) as lane:
        lane.generate(IDS[:9], max_tokens=1).read()
    assert [s for i, s in enumerate(told) if i == 0 or told[i - 1] != s] == [
        "resolve", "read", "compile", "load", "prompt",
    ]


def test_too_little_memory_is_refused_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lanewise.runtime.memory.available", lambda: 20_000)
    told: list[str] = []
    with pytest.raises(RunError) as e:
        lw.compile(
            GOLDEN / "llama_tied.q8_0.gguf", progress=lambda stage, *rest: told.append(stage)
        )
    assert e.value.code == "run.memory" and "128 positions" in str(e.value)
    assert set(told) == {"resolve", "read"}


def test_threads_may_share_a_lane(lane: Lane) -> None:
    lane.chunk = 4
    prompts = [IDS[i : i + 9] for i in range(4)]

    def run(prompt: list[int]) -> list[int]:
        g = lane.generate(prompt, max_tokens=8, temperature=0)
        g.read()
        return g.ids

    alone = [run(p) for p in prompts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, prompts)) == alone


def test_inspect() -> None:
    info = lw.inspect(GOLDEN / "qwen3_tied.q8_0.gguf")
    assert info.spec is not None and not info.problem and not info.unused
    assert info.parameters == sum(t.elements for t in info.tensors)
    assert info.totals["q8_0"][0] == 15 and info.totals["f32"][0] == 9
    assert info.memory(128) > info.nbytes
    assert info.metadata["general.name"] == "golden qwen3_tied"


def test_a_lane_that_is_dropped_unclosed_frees_its_memory_at_once() -> None:
    """As in a notebook, where `lane = lw.compile(...)` runs again: no collector is waited for."""
    gc.disable()
    try:
        opened = lw.compile(GOLDEN / "llama_tied.q8_0.gguf", threads=2)
        opened.generate(IDS[:9], max_tokens=2, temperature=0).read()
        opened.logits(IDS[:3])
        assert "logits" in opened.forms
        session = weakref.ref(opened._runner._engine)  # it holds the weights and the cache
        del opened
        assert session() is None
    finally:
        gc.enable()
