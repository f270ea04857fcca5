"""Generation over a scripted engine: ends, stop strings, seeds, interleaving, interruption."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from lanewise.errors import RunError, UsageError
from lanewise.lane.generate import Generation
from lanewise.lane.lane import Lane
from lanewise.lane.runner import Runner
from lanewise.lane.sampling import Stream
from lanewise.lane.spec import ModelSpec, Rope
from tests.lane.fakes import VOCAB, FakeEngine, FakeText, expected_run

SPEC = ModelSpec(
    "llama", "fake", 1, 8, 8, 1, 1, 8, VOCAB, 64, 1e-5, 1.0, Rope("half", 1e4, 8), True
)


def lane(context: int = 64, chunk: int = 8, end: tuple[int, ...] = (39,)) -> tuple[Any, FakeEngine]:
    engine = FakeEngine(context, chunk)
    runner = Runner(engine, context=context, vocab=VOCAB, max_chunk=chunk)
    closed: list[int] = []
    made = Lane(
        spec=SPEC,
        runner=runner,
        text=FakeText(end),
        forms={},
        program=None,
        threads=1,
        close=lambda: closed.append(1),
    )
    made.closed = closed  # type: ignore[attr-defined]
    return made, engine


def test_length() -> None:
    g = lane(end=())[0].generate([1, 2, 3], max_tokens=5)
    assert g.finish_reason == ""
    text = "".join(g)
    assert g.ids == expected_run([1, 2, 3], 5) and g.prompt_ids == [1, 2, 3]
    assert text == g.text == FakeText().decode(g.ids)
    assert g.finish_reason == "length" and list(g) == []


def test_a_generation_shows_what_became_of_it() -> None:
    g = lane(end=())[0].generate("bcd", max_tokens=2)
    assert repr(g) == "<Generation of 0 tokens, not ended: ''>"
    text = g.read()
    assert repr(g) == f"<Generation of 2 tokens, length: {text!r}>"


@pytest.mark.parametrize("chat", [False, True])
def test_a_prompt_that_cannot_fit_is_not_encoded(chat: bool, monkeypatch: Any) -> None:
    made, engine = lane(context=64)
    ask = (lambda t: made.chat([{"role": "user", "content": t}])) if chat else made.generate
    with pytest.raises(UsageError) as e:
        ask("a" * 6400)  # may be 64 tokens: counted, and they are more
    assert "has 6400 tokens" in e.value.message
    monkeypatch.delattr(FakeText, "encode")
    monkeypatch.delattr(FakeText, "prompt")
    with pytest.raises(UsageError) as e:
        ask("a" * 6401)
    assert e.value.code == "usage.context" and e.value.remedy == "shorten the prompt"
    assert e.value.message == "the prompt has at least 65 tokens, the context holds 64"
    assert not engine.runs


def test_text_and_ids_are_one_prompt() -> None:
    assert lane(end=())[0].generate("bcd", max_tokens=4).read() == (
        lane(end=())[0].generate([1, 2, 3], max_tokens=4).read()
    )


def test_end_token() -> None:
    run = expected_run([1, 2, 3], 30)
    g = lane(end=(run[4],))[0].generate([1, 2, 3], max_tokens=30)
    g.read()
    first = run.index(run[4])
    assert g.ids == run[: first + 1] and g.finish_reason == "stop"
    assert g.text == FakeText().decode(run[:first])


def test_context_full() -> None:
    made, engine = lane(context=16, end=())
    g = made.generate([1] * 10)
    g.read()
    assert g.finish_reason == "context" and len(g.ids) == 7
    assert g.ids == expected_run([1] * 10, 7)
    assert (engine.cache[:16] != 0xFFFFFFFF).all()
    exact = made.generate([1] * 16, max_tokens=1)
    exact.read()
    assert len(exact.ids) == 1 and exact.finish_reason == "length"
    with pytest.raises(UsageError) as e:
        made.generate([1] * 17)
    assert e.value.code == "usage.context"


@pytest.mark.parametrize(("asked", "room"), [({}, 512), ({"max_tokens": 3}, 3)])
@pytest.mark.parametrize("chat", [False, True])
def test_a_refused_prompt_asks_for_room_to_answer(chat: bool, asked: Any, room: int) -> None:
    made, _ = lane(context=16)
    made._runner._trained = 4096
    text = "b" * 17
    with pytest.raises(UsageError) as e:
        if chat:
            made.chat([{"role": "user", "content": text}], **asked)
        else:
            made.generate(text, **asked)
    count = int(e.value.message.split()[3])
    assert count >= 17 and f"(-c {count + room})" in e.value.remedy


def test_stop_ends_the_generation() -> None:
    run = FakeText().decode(expected_run([1, 2, 3], 12))
    stop = run[3:5]
    g = lane(end=())[0].generate([1, 2, 3], max_tokens=12, stop=stop)
    assert g.read() == run[: run.index(stop)] and g.finish_reason == "stop"


def test_characters_come_whole() -> None:
    g = Generation(
        Runner(FakeEngine(64), context=64, vocab=VOCAB, max_chunk=8),
        [1],
        FakeText().stream(),
        lane()[0].generate([1]).sampling,
        max_tokens=3,
    )
    script = iter([26, 27, 0])
    g._runner.next_token = lambda *a: next(script)  # type: ignore[method-assign]
    assert list(g) == ["é", "a"]


def test_half_a_character_at_the_end_is_marked() -> None:
    g = lane()[0].generate([1], max_tokens=1)
    g._runner.next_token = lambda *a: 26
    assert g.read() == "�"


def test_one_draw_a_token_from_the_seed() -> None:
    made, engine = lane(end=())
    g = made.generate([1, 2], max_tokens=4, seed=1, temperature=0.5, top_k=3)
    g.read()
    draws = [o[4] for o in engine.options]
    assert draws == [Stream(1).draw(i) for i in range(4)] and g.seed == 1
    assert made.generate([1], seed=None).seed != made.generate([1], seed=None).seed


def test_interleaved_generations_do_not_disturb_each_other() -> None:
    made, _ = lane(end=())
    a = made.generate([1, 2, 3], max_tokens=6)
    b = made.generate([1, 2, 9, 9], max_tokens=6)
    for _ in range(6):
        next(a, None)
        next(b, None)
    assert a.read() == FakeText().decode(expected_run([1, 2, 3], 6))
    assert b.read() == FakeText().decode(expected_run([1, 2, 9, 9], 6))


@pytest.mark.parametrize("options", [
    {"max_tokens": 12}, {"max_tokens": 30, "stop": "ab"}, {"max_tokens": None},
    {"max_tokens": 20, "temperature": 1.0, "seed": 5},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("end", [(), (1,), (17, 33)])
def test_tokens_that_come_at_once_change_nothing(
    options: dict[str, Any], end: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for at_once in (1, 2, 7, 8):
        monkeypatch.setattr(Runner, "at_once", at_once)
        made, engine = lane(context=40, end=end)
        engine.next_after = lambda h: (h[-1] + 8) % 36 if len(h) % 3 else expected_run(h, 1)[0]
        g = made.generate([1, 2, 3], speculate="off", **{"seed": 3, **options})
        pieces = list(g)
        draws = {at: engine.drawn[at] for at in range(3, 3 + len(g.ids))}
        found.append((g.ids, pieces, g.text, g.finish_reason, draws))
        assert len(g.ids) > 1 and found[-1] == found[0]


@pytest.mark.parametrize("at_once", [1, 8])
def test_ctrl_c_keeps_what_was_written(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made, engine = lane(end=())
    monkeypatch.setattr(Runner, "at_once", at_once)
    g = made.generate([1, 2, 3], max_tokens=20, speculate="off")
    engine.fail_after = 5
    pieces: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        for piece in g:
            pieces.append(piece)
    written = 5 if at_once == 1 else 1  # the step that was interrupted had given nothing out
    assert g.finish_reason == "interrupted" and g.ids == expected_run([1, 2, 3], written)
    assert g.text == "".join(pieces) == FakeText().decode(g.ids)
    assert list(g) == []
    engine.fail_after = -1
    assert made.generate([1, 2], max_tokens=2).read() == FakeText().decode(expected_run([1, 2], 2))


def test_an_error_ends_it_and_the_lane_goes_on() -> None:
    made, engine = lane(end=())
    engine.poison_after = 5
    g = made.generate([1, 2, 3], max_tokens=9)
    with pytest.raises(RunError):
        g.read()
    assert g.finish_reason == "error" and len(g.ids) == 2
    engine.poison_after = -1
    assert made.generate([1, 2, 3], max_tokens=3).read()


def test_timings() -> None:
    made, _ = lane(end=())
    ticks = iter(range(0, 1000, 10))
    g = made.generate([1, 2, 3, 4], max_tokens=3)
    g._clock = lambda: float(next(ticks))
    g.read()
    t = g.timings
    assert (t.prompt_tokens, t.reused, t.tokens) == (4, 0, 3)
    assert (t.prompt_s, t.first_token_s, t.generate_s) == (10.0, 10.0, 40.0)
    assert t.prompt_rate == 0.4 and t.rate == 0.05
    again = made.generate([1, 2, 3, 4, 5], max_tokens=1)
    again.read()
    assert again.timings.reused == 4


def test_chat() -> None:
    made, _ = lane(end=())
    g = made.chat(
        [{"role": "user", "content": "bc"}, {"role": "user", "content": "d"}], max_tokens=2
    )
    assert g.read() == FakeText().decode(expected_run([1, 2, 3], 2))


def test_logits() -> None:
    made, _ = lane()
    found = made.logits([3, 1, 4])
    assert found.shape == (3, VOCAB) and found.dtype == np.float32
    assert np.array_equal(found, made.logits([3, 1, 4], chunk=1))


@pytest.mark.parametrize(("options", "named"), [
    ({"temperature": -1}, "temperature"), ({"temperature": float("nan")}, "temperature"),
    ({"temperature": 0.0001}, "temperature"), ({"temperature": 10**400}, "temperature"),
    ({"temperature": "hot"}, "temperature"), ({"temperature": None}, "temperature"),
    ({"top_k": -1}, "top_k"), ({"top_k": 1 << 32}, "top_k"), ({"top_k": 1.5}, "top_k"),
    ({"top_p": 0}, "top_p"), ({"top_p": 1.5}, "top_p"), ({"min_p": -0.1}, "min_p"),
    ({"min_p": float("inf")}, "min_p"), ({"seed": 1.5}, "seed"), ({"seed": "x"}, "seed"),
    ({"max_tokens": -1}, "max_tokens"), ({"max_tokens": 2.0}, "max_tokens"),
    ({"stop": ""}, "stop"), ({"stop": ["a", ""]}, "stop"), ({"stop": [5]}, "stop"),
    ({"stop": 5}, "stop"), ({"max_tokens": True}, "max_tokens"), ({"seed": np.bool_(1)}, "seed"),
    ({"max_tokens": 0}, "max_tokens"), ({"seed": -1}, "seed"), ({"seed": 1 << 63}, "seed"),
])  # fmt: skip
def test_options_out_of_range_are_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError) as e:
        lane()[0].generate([1], **options)
    assert e.value.code == "usage.option" and e.value.place == named and e.value.remedy
    assert named not in e.value.message  # the place says it


def test_numbers_may_be_numpys_and_stop_may_be_none() -> None:
    plain = lane(end=())[0].generate([1], max_tokens=4, temperature=0.5, top_k=7, seed=3)
    other = lane(end=())[0].generate(
        np.array([1]),
        max_tokens=np.int64(4),
        temperature=np.float32(0.5),
        top_k=np.uint8(7),
        top_p=np.float64(0.95),
        seed=np.int32(3),
        stop=None,
    )
    assert other.sampling == plain.sampling and other.read() == plain.read()
    assert type(other.seed) is int


def test_all_bad_options_at_once() -> None:
    with pytest.raises(Exception, match="2 errors") as e:
        lane()[0].generate([1], temperature=-1, top_p=7)
    errors = e.value.errors  # type: ignore[attr-defined]
    assert [x.place for x in errors] == ["temperature", "top_p"]


def test_closing() -> None:
    made, _ = lane()
    with made as inside:
        assert inside is made
    made.close()
    assert made.closed == [1]
    with pytest.raises(UsageError) as e:
        made.generate([1])
    assert e.value.code == "usage.closed" and "closed" in repr(made)


def test_a_generation_outlives_its_lane_with_a_clear_error() -> None:
    made, _ = lane(end=())
    with made:
        g = made.generate([1], max_tokens=5)
        next(g)
    with pytest.raises(UsageError) as e:
        g.read()
    assert e.value.code == "usage.closed" and g.finish_reason == "error" and len(g.ids) == 1


def test_closing_waits_for_another_threads_step_and_can_be_tried_again() -> None:
    made, engine = lane(end=())
    begun, go = threading.Event(), threading.Event()
    run = engine.run

    def slow(form: str, scalars: Any) -> None:
        begun.set()
        assert go.wait(10)
        run(form, scalars)

    engine.run = slow  # type: ignore[method-assign]
    g = made.generate([1], max_tokens=1)
    with ThreadPoolExecutor(2) as pool:
        text = pool.submit(g.read)
        assert begun.wait(10)
        closing = pool.submit(made.close)
        time.sleep(0.05)
        assert not made.closed and not closing.done()
        go.set()
        closing.result(10)
        assert text.result(10) and made.closed == [1]

    def busy() -> None:
        raise RunError("run.busy", "a run is in flight")

    again, _ = lane()
    again._close, free = busy, again._close
    with pytest.raises(RunError):
        again.close()
    again._close = free
    again.close()
    assert again.closed == [1]
