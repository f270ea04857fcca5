"""Speculation: the same tokens always; on where lookups are right and cheap, off by itself."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lanewise as lw
from lanewise.errors import RunError, UsageError
from lanewise.lane.generate import Generation
from lanewise.lane.runner import Runner
from lanewise.lane.sampling import Sampling, Stream
from lanewise.lane.speculate import ROWS, Drafting, Later, Pace, Speculator
from tests.house.rules import ROOT
from tests.lane.fakes import VOCAB, FakeEngine, FakeText, expected_next
from tests.models.support import GOLDEN

GREEDY = Sampling(temperature=0.0)
COPY = [3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 8, 9, 7]  # no pair occurs twice


def copying(history: Sequence[int]) -> int:
    """Goes on with what stood 13 tokens before."""
    return history[-13] if len(history) >= 13 else expected_next(history)


class Clocked(FakeEngine):
    """Runs take made-up time: a step 1, each row more `row`."""

    def __init__(self, context: int, row: float) -> None:
        super().__init__(context)
        self.now, self.row = 0.0, row

    def run(self, form: str, scalars: dict[str, int]) -> None:  # type: ignore[override]
        super().run(form, scalars)
        self.now += 1 + self.row * (scalars["rows"] - 1)


def generate(
    engine: Clocked, prompt: Sequence[int], count: int, drafting: Drafting, seed: int = 0,
    context: int = 0,
) -> Generation:
    runner = Runner(
        engine, context=context or len(engine.cache), vocab=VOCAB, max_chunk=8,
        verify_engine=lambda wait: engine, clock=lambda: engine.now,
    )
    return Generation(
        runner, list(prompt), FakeText().stream(), Sampling(temperature=0.0, seed=seed),
        max_tokens=count, drafting=drafting, clock=lambda: engine.now,
    )


def clocked(row: float, after: Callable[[Sequence[int]], int] = copying, n: int = 2048) -> Clocked:
    engine = Clocked(n, row)
    engine.next_after = after
    return engine


def plain(after: Callable[[Sequence[int]], int], prompt: Sequence[int], count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        ids.append(after(ids))
    return ids[len(prompt) :]


def test_copying_is_found_and_pays() -> None:
    engine = clocked(0.2)
    g = generate(engine, COPY * 2, 300, Drafting(7))
    g.read()
    assert g.ids == plain(copying, COPY * 2, 300)
    t = g.timings
    assert t.accepted == t.drafted > 200
    assert 300 / t.generate_s > 2.6  # steps of one row would give 1; at best 8 / 2.4
    assert t.tokens == 300


def test_unhelpful_text_runs_plain_steps() -> None:
    noise = random.Random(5)
    engine = clocked(0.2, lambda history: noise.randrange(VOCAB))
    g = generate(engine, COPY * 2, 1500, Drafting(7))
    g._end_tokens = frozenset()
    g.read()
    assert g.timings.tokens / g.timings.generate_s >= 0.98


@pytest.mark.parametrize("row", [0.15, 0.35, 0.6, 1.0])
@pytest.mark.parametrize("name", ["recipes.md", "ARCHITECTURE.md"])
def test_prose_is_never_slower(name: str, row: float) -> None:
    """Words of a page in the place of tokens, written as a model would; times with noise."""
    words = re.findall(r"\w+|[^\w\s]", (ROOT / "docs" / name).read_text())
    numbers = {w: i for i, w in enumerate(dict.fromkeys(words))}
    text = [numbers[w] for w in words][:2000]
    noise, ids, pace, spent = random.Random(2), text[:50], Pace(), 0.0
    s = Speculator(ids, Drafting(7), pace)
    while len(ids) < len(text):
        draft = s.propose(len(text) - len(ids) - 1)
        took = 1 + row * len(draft)
        pace.took(1 + len(draft), took * noise.uniform(0.9, 1.3))
        spent += took
        right = 0
        while right < len(draft) and text[len(ids) + right] == draft[right]:
            right += 1
        ids.extend(text[len(ids) : len(ids) + right + 1])
    assert (len(text) - 50) / spent >= 0.985


def test_cost_switches_it_off_and_it_is_tried_again() -> None:
    engine = clocked(1.2)  # two rows cost 2.2 steps: even two right tokens lose
    g = generate(engine, COPY * 2, 1000, Drafting(4))
    g.read()
    runs = [i for i, (form, _, _) in enumerate(engine.runs) if form == "verify"]
    assert 2 <= len(runs) <= 8 and max(runs) > 150
    assert g.timings.tokens / g.timings.generate_s >= 0.98
    engine.row = 0.1
    again = generate(engine, COPY * 2, 600, Drafting(4))
    again._runner.pace = again._ahead._pace = g._runner.pace  # type: ignore[union-attr]
    again._runner.forget()
    again.read()
    assert again.ids == g.ids[:600] and again.timings.accepted > 50


def test_each_row_has_the_draw_of_its_step() -> None:
    engine = clocked(0.1)
    g = generate(engine, COPY * 2, 40, Drafting(7, forced=True), seed=11)
    g.read()
    assert any(form == "verify" for form, _, _ in engine.runs)
    stream = Stream(11)
    for step in range(40):
        assert engine.drawn[len(COPY) * 2 + step] == stream.draw(step)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 7), st.integers(0, 60),
       st.integers(2, 5))
@settings(max_examples=60, deadline=None)
def test_forced_guesses_never_change_a_token(
    prompt: list[int], most: int, count: int, modulus: int
) -> None:
    def after(history: Sequence[int]) -> int:
        return (history[-1] * 3 + history[len(history) // 2] + len(history) // 7) % modulus

    engine = clocked(0.5, after, 96)
    context = min(96, len(prompt) + 40)
    g = generate(engine, prompt, count, Drafting(most, forced=True), context=context)
    g.read()
    wanted = plain(after, prompt, min(count, context - len(prompt) + 1))
    assert g.ids == wanted
    runner = g._runner
    assert list(engine.cache[: len(runner.held)]) == runner.held
    assert runner.held == (prompt + g.ids)[: len(runner.held)]
    assert engine.cache[context:].tolist() == [0xFFFFFFFF] * (96 - context)


def test_an_end_inside_a_draft_leaves_a_cache_that_is_true() -> None:
    engine = clocked(0.1)
    g = generate(engine, COPY * 2, 50, Drafting(6, forced=True))
    g._end_tokens = frozenset([35])
    g.read()
    assert g.finish_reason == "stop" and g.ids == COPY[: COPY.index(35) + 1]
    held = list(g._runner.held)
    assert list(engine.cache[: len(held)]) == held
    ids = [*COPY, *COPY, *g.ids, 7]
    assert g._runner.next_token(ids, GREEDY, 0.0) == copying(ids)


def test_interleaved_with_another_generation() -> None:
    engine = clocked(0.1)
    g = generate(engine, COPY * 2, 40, Drafting(5, forced=True))
    for _ in range(40):
        next(g, None)
        g._runner.next_token([9, 9, 9], GREEDY, 0.0)
    g.read()
    assert g.ids == plain(copying, COPY * 2, 40)


def test_a_row_that_is_not_finite_is_met_by_a_plain_step() -> None:
    engine = clocked(0.1)
    engine.poison_after = 2 * len(COPY) + 9
    g = generate(engine, COPY * 2, 40, Drafting(6, forced=True))
    with pytest.raises(RunError) as e:
        g.read()
    assert e.value.code == "run.not_finite" and f"after {2 * len(COPY) + 9} " in str(e.value)
    assert g.ids == plain(copying, COPY * 2, 9) and g._runner.held == []


def test_an_interruption_while_checking_leaves_a_true_prefix() -> None:
    engine = clocked(0.1)
    g = generate(engine, COPY * 2, 40, Drafting(6, forced=True))
    next(g)
    engine.fail_after = len(engine.runs) + 1
    with pytest.raises(KeyboardInterrupt):
        g.read()
    held = g._runner.held
    assert held == (COPY * 2 + g.ids)[: len(held)] and list(engine.cache[: len(held)]) == held


def test_lookups_take_the_longest_key_and_the_last_place() -> None:
    ids = [1, 2, 3, 4, 9, 2, 3, 7, 0, 1, 2, 3]
    s = Speculator(ids, Drafting(4, forced=True), Pace())
    assert s.propose(9) == [4, 9, 2, 3]  # the triple, though the pair came later
    assert s.propose(1) == [4] and s.propose(0) == []
    ids.append(8)
    assert s.propose(9) == []
    ids += [5, 6, 5, 6]
    assert s.propose(9) == [5, 6, 5, 6]  # what repeats is taken to go on


def test_chances_follow_what_lookups_would_have_given() -> None:
    ids = COPY * 2
    s = Speculator(ids, Drafting(), Pace())
    before = s.chance(16)
    for _ in range(30):
        ids.append(copying(ids))
        s.propose(4)
    assert s.chance(16) > 0.9 > before
    noise = random.Random(1)
    for _ in range(400):
        ids.append(noise.randrange(3))
        s.propose(4)
    assert s.chance(3) < 0.5


def test_costs() -> None:
    pace = Pace()
    assert pace.step_s == 0
    pace.took(4, 1.0)  # not known in steps
    pace.took(1, 0.5)
    assert pace.cost(2) == pace.guess(2) > 1
    for _ in range(40):
        pace.took(5, 1.0)
    assert pace.cost(5) == pytest.approx(2.0) and pace.cost(3) == pytest.approx(1.5)
    pace.took(5, 500.0)  # an interruption
    assert pace.cost(5) < 3.1


@pytest.mark.parametrize(("value", "want"), [
    ("auto", Drafting(7)), ("off", Drafting()), (0, Drafting(0, True)), (7, Drafting(7, True)),
    ("3", Drafting(3, True)),
])  # fmt: skip
def test_option(value: object, want: Drafting) -> None:
    assert Drafting.checked(value) == want


@pytest.mark.parametrize("value", ["on", -1, 8, 1.0, True, None, "8", "²"])
def test_bad_option(value: object) -> None:
    with pytest.raises(UsageError) as e:
        Drafting.checked(value)
    assert e.value.code == "usage.option" and e.value.place == "speculate" and e.value.remedy


def test_later() -> None:
    made: list[int] = []
    later = Later(lambda: made.append(1) or 5)
    assert later(wait=True) == 5 and later() == 5 and made == [1]
    later.close()
    failing = Later(lambda: 1 // 0)
    assert failing() is None
    failing.close()
    assert failing() is None
    with pytest.raises(ZeroDivisionError):
        failing(wait=True)


@pytest.mark.parametrize("name", ["llama_tied.q8_0", "qwen3_untied.f32"])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_model_writes_the_same_with_and_without(name: str, temperature: float) -> None:
    prompt = [5, 6, 7, 8] * 6
    found = {}
    with lw.compile(GOLDEN / f"{name}.gguf", threads=2) as lane:
        for speculate in ("off", 1, 4, 7, "auto"):
            lane.reset()
            g = lane.generate(
                prompt, max_tokens=80, temperature=temperature, top_k=3, seed=5,
                speculate=speculate,
            )
            g._end_tokens = frozenset()
            g.read()
            found[speculate] = g.ids
            if speculate in (1, 4, 7):
                assert g.timings.drafted >= g.timings.accepted > 0
            assert speculate != "off" or not g.timings.drafted
        assert lane.forms["verify"].capacity == ROWS
    assert all(ids == found["off"] for ids in found.values())


def test_rows_that_check_are_the_bits_of_single_steps() -> None:
    ids = [5, 6, 7, 8] * 6
    with lw.compile(GOLDEN / "qwen3_tied.q8_0.gguf", threads=2) as lane:
        runner, draft = lane._runner, [5, 6, 7, 8, 5, 6, 7]
        runner.next_token(ids, GREEDY, 0.0)
        assert runner.next_tokens(ids, draft, GREEDY, [0.0] * 8, wait=True)
        assert runner._verify is not None
        checked = runner._verify[1].logits.copy()
        assert np.array_equal(checked, lane.logits(ids + draft)[len(ids) - 1 :])
        for r in range(8):
            runner.next_token(ids + draft[:r], GREEDY, 0.0)
            assert np.array_equal(runner._decode.logits[0], checked[r])


@pytest.mark.slow
@pytest.mark.model
def test_copying_on_the_demo_model(smollm2_path) -> None:  # type: ignore[no-untyped-def]
    text = "The harbour master wrote that the tide table hung beside the door, and that nobody had "
    text += "read it since the storm of 1911. "
    with lw.compile(smollm2_path) as lane:
        for temperature in (0.0, 0.7):
            options = {"temperature": temperature, "seed": 4, "max_tokens": 96}
            want = lane.generate(text * 4, **options, speculate="off").read()
            for speculate in ("auto", 3):
                lane.reset()
                g = lane.generate(text * 4, **options, speculate=speculate)
                assert g.read() == want
            assert g.timings.accepted > 40
