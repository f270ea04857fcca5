"""The authored SmolLM2 step, interpreted in float64, against the reference's exact arithmetic."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.models.support import interpreted

CASES = json.loads(
    (Path(__file__).parents[1] / "reference" / "smollm2_greedy.json").read_text()
)["cases"]
QUICK = ("capital-chat",)
ALL = (
    "capital-completion", "python-code", "haiku-chat", "system-chat", "turns-chat", "unicode",
    "whitespace", "numbers", "json-chat", "long-copy", "one-token",
)  # fmt: skip

pytestmark = pytest.mark.model


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in ALL)]
)
def test_teacher_forced_logits(name: str, smollm2_path: Path) -> None:
    case = CASES[name]
    prompt, greedy = case["prompt_ids"], case["greedy_ids"]
    logits = interpreted(smollm2_path, prompt + greedy[:-1])[len(prompt) - 1 :]
    for row, token, top in zip(logits, greedy, case["top5"], strict=True):
        assert np.abs(row[top["ids"]] - top["logits"]).max() <= 1e-4
        assert row.argmax() == token


def test_every_case_is_named() -> None:
    assert sorted(CASES) == sorted(QUICK + ALL)
