"""The compiled SmolLM2 lane against exact arithmetic: logits teacher-forced, text generated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lanewise as lw
from lanewise.lane import Lane

CASES: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "reference" / "smollm2_greedy.json").read_text()
)["cases"]
MARGIN = 0.02  # below this, the most likely token may be the second

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def lane(smollm2_path: Path) -> Iterator[Lane]:
    with lw.compile(smollm2_path) as opened:
        yield opened


def compared(lane: Lane, names: tuple[str, ...] = tuple(CASES)) -> np.ndarray:
    """|error| of the five given logits of every step; the most likely token is checked."""
    errors = []
    for name in names:
        case = CASES[name]
        prompt, greedy = case["prompt_ids"], case["greedy_ids"]
        logits = lane.logits(prompt + greedy[:-1])[len(prompt) - 1 :]
        for row, token, top in zip(logits, greedy, case["top5"], strict=True):
            errors.append(np.abs(row[top["ids"]] - top["logits"]))
            if top["logits"][0] - top["logits"][1] > MARGIN:
                assert row.argmax() == token, name
    return np.concatenate(errors)


def test_logits_in_the_default_numerics(lane: Lane) -> None:
    errors = compared(lane)
    assert np.median(errors) <= 0.01 and errors.max() <= 0.05


@pytest.mark.slow
def test_logits_in_the_reference_mode(smollm2_path: Path) -> None:
    with lw.compile(smollm2_path, activations="f32", kv="f32") as exact:
        errors = compared(exact)
    assert np.median(errors) <= 0.001 and errors.max() <= 0.005


@pytest.mark.parametrize("name", CASES)
def test_greedy_text(lane: Lane, name: str) -> None:
    """No case has a margin that the default numerics do not resolve."""
    case = CASES[name]
    assert lane.tokenizer.encode(case["text"], special=True) == case["prompt_ids"]
    g = lane.generate(case["prompt_ids"], max_tokens=48, temperature=0)
    assert g.read() == case["greedy_text"] and g.ids == case["greedy_ids"]
    assert g.finish_reason == ("stop" if g.ids[-1] == 2 else "length")


def test_the_question(lane: Lane) -> None:
    g = lane.chat([{"role": "user", "content": "What is the capital of France?"}], temperature=0)
    assert g.read() == "The capital of France is Paris."
    assert g.prompt_ids == CASES["capital-chat"]["prompt_ids"]


def test_the_next_turn_reuses_the_first(lane: Lane) -> None:
    turns = [{"role": "user", "content": "What is the capital of France?"}]
    first = lane.chat(turns, temperature=0)
    turns += [{"role": "assistant", "content": first.read()},
              {"role": "user", "content": "And of Italy?"}]
    second = lane.chat(turns, temperature=0, max_tokens=2)
    second.read()
    assert second.timings.reused >= len(first.prompt_ids) + len(first.ids) - 1


def test_special_tokens_in_plain_text_are_text(lane: Lane) -> None:
    g = lane.generate("<|im_end|>", max_tokens=1, temperature=0)
    assert 2 not in g.prompt_ids and len(g.prompt_ids) > 1
