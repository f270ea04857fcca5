"""The runner: chunk plans, prefix reuse, refusals, recovery; against a cache that is checked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanewise.errors import RunError, UsageError
from lanewise.lane.runner import Runner
from lanewise.lane.sampling import Sampling
from tests.lane.fakes import VOCAB, FakeEngine, expected_next, expected_run

GREEDY = Sampling(temperature=0.0)


def runner(context: int = 64, chunk: int = 8) -> tuple[Runner, FakeEngine]:
    engine = FakeEngine(context, chunk)
    return Runner(engine, context=context, vocab=VOCAB, max_chunk=chunk), engine


def test_a_prompt_runs_as_the_largest_chunks_and_logits_come_out_once() -> None:
    r, engine = runner(chunk=8)
    ids = list(range(17))
    assert r.next_token(ids, GREEDY, 0.0) == expected_next(ids)
    assert engine.runs == [("prefill", 8, 0), ("prefill", 8, 0), ("decode", 1, 1)]


def test_a_chunk_of_one_compiles_no_prefill() -> None:
    engine = FakeEngine(64, 8)
    r = Runner(engine, context=64, vocab=VOCAB, max_chunk=1)
    assert r.next_token([1, 2, 3], GREEDY, 0.0) == expected_next([1, 2, 3])
    assert [form for form, _, _ in engine.runs] == ["decode"] * 3


def test_smaller_chunks_on_request() -> None:
    r, engine = runner(chunk=8)
    r.chunk = 3
    r.next_token([1] * 7, GREEDY, 0.0)
    assert [rows for _, rows, _ in engine.runs] == [3, 3, 1]
    for rows in (0, 9):
        with pytest.raises(UsageError) as e:
            r.chunk = rows
        assert e.value.code == "usage.option"


def test_a_continuation_runs_one_row() -> None:
    r, engine = runner()
    ids = [5, 6, 7]
    ids.append(r.next_token(ids, GREEDY, 0.0))
    assert r.next_token(ids, GREEDY, 0.0) == expected_next(ids)
    assert engine.runs[1:] == [("decode", 1, 1)]


def test_a_shared_prefix_is_not_run_again() -> None:
    r, engine = runner()
    r.next_token([1, 2, 3, 4, 5], GREEDY, 0.0)
    engine.runs.clear()
    longer = [1, 2, 3, 4, 5, 6, 7]
    assert r.reused(longer) == 5
    assert r.next_token(longer, GREEDY, 0.0) == expected_next(longer)
    assert engine.runs == [("prefill", 2, 1)]


def test_the_same_prompt_again_runs_its_last_token_only() -> None:
    r, engine = runner()
    r.next_token([1, 2, 3], GREEDY, 0.0)
    engine.runs.clear()
    assert r.next_token([1, 2, 3], GREEDY, 0.0) == expected_next([1, 2, 3])
    assert engine.runs == [("decode", 1, 1)]


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=30), max_size=8),
    st.sampled_from([1, 2, 3, 8]),
)
def test_any_history_of_requests_gives_what_each_gives_alone(
    requests: list[list[int]], chunk: int
) -> None:
    r, _ = runner(32, chunk)
    for ids in requests:
        assert r.next_token(ids, GREEDY, 0.0) == expected_next(ids)
        assert r.held == ids


def test_an_interruption_leaves_a_true_prefix() -> None:
    r, engine = runner(chunk=4)
    r.next_token([9] * 6, GREEDY, 0.0)
    engine.fail_after = len(engine.runs) + 1
    with pytest.raises(KeyboardInterrupt):
        r.next_token([9, 9] + [8] * 12, GREEDY, 0.0)
    assert r.held == [9, 9, 8, 8, 8, 8]
    assert list(engine.cache[:6]) == r.held
    engine.fail_after = -1
    ids = [9, 9, 8, 8, 8, 8, 7]
    assert r.next_token(ids, GREEDY, 0.0) == expected_next(ids)


def test_logits_that_are_not_finite_empty_the_cache() -> None:
    r, engine = runner()
    engine.poison_after = 4
    with pytest.raises(RunError) as e:
        r.next_token([1, 2, 3, 4], GREEDY, 0.0)
    assert e.value.code == "run.not_finite" and e.value.remedy
    assert r.held == []
    with pytest.raises(RunError):
        list(r.logits([1, 2, 3, 4]))
    engine.poison_after = -1
    assert r.next_token([1, 2, 3, 4], GREEDY, 0.0) == expected_next([1, 2, 3, 4])


def test_logits_of_every_row_then_reuse() -> None:
    r, engine = runner(chunk=4)
    ids = [3, 1, 4, 1, 5, 9, 2, 6, 5]
    for chunk in (None, 1, 2, 3):
        found = np.concatenate([rows.copy() for _, rows in r.logits(ids, chunk)])
        assert list(found.argmax(1)) == [expected_next(ids[: n + 1]) for n in range(9)]
    engine.runs.clear()
    r.next_token([*ids, 7], GREEDY, 0.0)
    assert engine.runs == [("decode", 1, 1)]


def test_options_reach_the_sampler_of_the_last_chunk() -> None:
    r, engine = runner(chunk=4)
    r.next_token([1] * 6, Sampling(0.5, 7, 0.25, 0.125), 0.75)
    assert engine.options == [(0.5, 7, 0.25, 0.125, 0.75)]


def test_a_program_of_its_own_for_logits_is_made_once_and_writes_the_same_cache() -> None:
    engine, made = FakeEngine(64, 8), []

    def lazily() -> FakeEngine:
        made.append(FakeEngine(64, 8))
        made[-1].cache = engine.cache
        return made[-1]

    r = Runner(engine, context=64, vocab=VOCAB, max_chunk=8, logits_engine=lazily)
    r.next_token([1, 2], GREEDY, 0.0)
    assert not made
    for _ in range(2):
        list(r.logits([1, 2, 3]))
    assert len(made) == 1 and made[0].runs and engine.runs == [("prefill", 2, 1)]
    ids = [1, 2, 3, 4]
    assert r.next_token(ids, GREEDY, 0.0) == expected_next(ids)
    assert engine.runs[1:] == [("decode", 1, 1)]


def test_progress_of_a_prompt() -> None:
    told: list[tuple[str, int, int, str]] = []
    engine = FakeEngine(64, 4)
    r = Runner(engine, context=64, vocab=VOCAB, max_chunk=4, progress=lambda *a: told.append(a))
    ids = [1] * 10
    ids.append(r.next_token(ids, GREEDY, 0.0))
    r.next_token(ids, GREEDY, 0.0)
    assert told == [("prompt", 4, 10, ""), ("prompt", 8, 10, ""), ("prompt", 10, 10, "")]


@pytest.mark.parametrize(("ids", "code"), [
    ([], "usage.prompt"), ([1, VOCAB], "usage.token"), ([-1], "usage.token"),
    ([1.5], "usage.token"), (["1"], "usage.token"), ([None], "usage.token"),
    ([float("inf")], "usage.token"), ([0] * 65, "usage.context"),
])  # fmt: skip
def test_bad_prompts_are_refused(ids: list[int], code: str) -> None:
    r, engine = runner(64)
    with pytest.raises(UsageError) as e:
        r.check(ids)
    assert e.value.code == code and not engine.runs
    if code == "usage.context":
        assert "65" in str(e.value) and "64" in str(e.value) and e.value.remedy
        r = Runner(engine, context=64, vocab=VOCAB, max_chunk=1, trained=65)
        with pytest.raises(UsageError) as e:
            r.check(ids)
        assert "-c" in e.value.remedy and "65" in e.value.remedy


@pytest.mark.parametrize(("trained", "answer", "wanted"), [
    (1000, 100, 170), (1000, 930, 1000), (1000, 5000, 1000), (70, 1, 70), (69, 1, None),
])  # fmt: skip
def test_the_room_that_is_advised_holds_an_answer(
    trained: int, answer: int, wanted: int | None
) -> None:
    r = Runner(FakeEngine(64, 8), context=64, vocab=VOCAB, max_chunk=1, trained=trained)
    with pytest.raises(UsageError) as e:
        r.check([0] * 70, answer)
    more = f", or give a context of {wanted} (-c {wanted})" if wanted else ""
    assert e.value.remedy == f"shorten the prompt{more}"
    with pytest.raises(UsageError) as e:
        r.check_least(70)  # it may be many more: what the model can hold at most
    most = f", or give a larger context: the model's is {trained} (-c {trained})"
    assert e.value.remedy == f"shorten the prompt{most if wanted else ''}"


def test_numpy_ids_are_ids() -> None:
    r, _ = runner()
    assert r.check(np.array([1, 2], np.uint32)) == [1, 2]


ENDS = frozenset({39})


@pytest.mark.parametrize("count", [2, 5, 8])
def test_tokens_written_at_once_are_those_of_single_steps(count: int) -> None:
    r, engine = runner()
    ids = [4, 5, 6]
    ids.append(r.next_token(ids, GREEDY, 0.0))
    for _ in range(3):
        draws = [0.01 * len(ids) + i / 64 for i in range(count)]
        told = r.write(ids, GREEDY, draws, frozenset())
        assert told == expected_run(ids, count) and r.held == ids + told[:-1]
        drawn = [engine.drawn[len(ids) + i] for i in range(count)]
        assert drawn == pytest.approx(draws, abs=1e-6)
        ids += told
    assert {rows for _, rows, _ in engine.runs[1:]} == {1}
    assert r.next_token(ids, GREEDY, 0.0) == expected_next(ids)


def test_an_end_token_is_the_last_that_is_written() -> None:
    r, engine = runner()
    ids = [4, 5, 6]
    ids.append(r.next_token(ids, GREEDY, 0.0))
    want = expected_run(ids, 8)
    end = want[3]
    want = want[: want.index(end) + 1]
    before = len(engine.runs)
    assert r.write(ids, GREEDY, [0.0] * 8, frozenset({end})) == want
    assert len(engine.runs) - before == len(want) and r.held == ids + want[:-1]
    other = [i for i in range(VOCAB) if i not in expected_run(ids + want, 4)]
    assert len(r.write(ids + want, GREEDY, [0.0] * 4, frozenset(other))) == 4


def test_other_ids_are_not_written_at_once() -> None:
    r, _ = runner()
    ids = [4, 5, 6]
    assert r.write(ids, GREEDY, [0.0] * 8, ENDS) == [expected_next(ids)]
    assert r.write([9, 5], GREEDY, [0.0] * 8, ENDS) == [expected_next([9, 5])]
    assert r.write([9, 5, 1, 1], GREEDY, [0.0], ENDS) == [expected_next([9, 5, 1, 1])]


def test_what_is_not_finite_is_met_after_what_was_written() -> None:
    r, engine = runner()
    ids = [4, 5, 6]
    ids.append(r.next_token(ids, GREEDY, 0.0))
    engine.poison_after = len(ids) + 3
    told = r.write(ids, GREEDY, [0.0] * 8, ENDS)
    assert told == expected_run(ids, 3)
    with pytest.raises(RunError) as refused:
        r.write(ids + told, GREEDY, [0.0] * 8, ENDS)
    assert refused.value.code == "run.not_finite" and r.held == []


def test_an_interrupted_write_leaves_a_true_cache() -> None:
    r, engine = runner()
    ids = [4, 5, 6]
    ids.append(r.next_token(ids, GREEDY, 0.0))
    engine.fail_after = len(engine.runs) + 3
    with pytest.raises(KeyboardInterrupt):
        r.write(ids, GREEDY, [0.0] * 8, ENDS)
    engine.fail_after = -1
    assert r.held == ids[:-1]
    assert r.next_token(ids, GREEDY, 0.0) == expected_next(ids)


def test_how_many_are_asked_for_goes_by_the_time_of_a_step() -> None:
    r, _ = runner()
    assert r.at_once == 1  # no step has been timed
    for step, most in ((0.0004, 8), (0.003, 5), (0.009, 1), (0.2, 1)):
        r.pace.step_s = step
        assert r.at_once == most
