"""Hundreds of damaged copies of a checkpoint through the whole lane.

Damage of structure ends in an error that names it, in under a second of CPU time and under 200 MB;
any other damage in an error or in a finite answer; nothing ends in a crash, a hang, a NaN or a
traceback.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.hostile import damage
from tests.hostile.conftest import GOLDEN, TINY, Outcome
from tests.hostile.damage import ANY, FINE, Copy

SECOND = 1.0
MEMORY = 200 << 20
# Errors that tell of a defect of ours, and not of the file.
OURS = ("graph.", "plan.", "build.", "run.constant", "run.buffer", "run.scalar", "internal")


def judge(copy: Copy, got: Outcome) -> str:
    """'' if the outcome is as wanted, else what is wrong with it."""
    code = got.code
    if code in ("TRACEBACK", "DIED") or code.startswith(OURS):
        return f"{code}: {got.message} {got.trace}"
    if code and not got.remedy:
        return f"{code} without a remedy: {got.message}"
    if got.peak > MEMORY:
        return f"{got.peak >> 20} MB"
    if copy.wanted == FINE:
        return code and f"{code}: {got.message}"
    if copy.wanted == ANY:
        return ""
    if not any(code == w or code.startswith(w + ".") for w in copy.wanted.split("|")):
        return f"{code or 'an answer'} instead of {copy.wanted}: {got.message}"
    return f"{got.cpu_s:.2f} s" if got.cpu_s > SECOND else ""


def through(copies: list[Copy], drive, cache: Path, work: Path) -> dict[str, Outcome]:
    """Every copy written, driven and judged; name -> outcome."""
    paths = {}
    for i, copy in enumerate(copies):
        paths[copy.name] = path = work / f"{i:04}.gguf"
        path.write_bytes(copy.data)
    assert len(paths) == len(copies), "two copies have one name"
    found = drive(list(paths.values()), cache, work)
    outcomes = {name: found[path] for name, path in paths.items()}
    wrong = [f"{c.name}: {why}" for c in copies if (why := judge(c, outcomes[c.name]))]
    assert not wrong, "\n" + "\n".join(wrong)
    return outcomes


def test_a_tiny_checkpoint(drive, compiled, tmp_path):
    copies = list(damage.copies(TINY.read_bytes(), cuts=30, header=60, weights=40))
    assert len(copies) > 400
    outcomes = through(copies, drive, compiled, tmp_path)
    sound = outcomes["sound"]
    assert sound.ids and not sound.code
    codes = Counter(o.code for o in outcomes.values())
    # The damage reaches every stage, from the first byte to the numbers, and flips of weights
    # are seen in what comes out (else the file that was damaged was not the file that ran).
    assert {c.split(".")[0] for c in codes} >= {"", "checkpoint", "model", "text", "usage", "run"}
    assert len(codes) >= 20, codes
    flips = {c.name for c in copies if c.name.startswith("flip")}
    assert any(outcomes[n].ids not in ((), sound.ids) for n in flips)


@pytest.mark.parametrize("name", ["qwen3_tied.q8_0", "llama3_untied.f32"])
def test_other_families_and_formats(drive, compiled, tmp_path, name):
    raw = (GOLDEN / f"{name}.gguf").read_bytes()
    header = raw.index(b"output_norm.weight") + 64
    copies = [
        Copy("sound", raw, FINE),
        *damage.truncated(raw, header, 6),
        *damage.flipped(raw, 0, header, 15, seed=5),
        *damage.flipped(raw, header, len(raw), 15, seed=6),
    ]
    through(copies, drive, compiled, tmp_path)
