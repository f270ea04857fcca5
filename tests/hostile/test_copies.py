"""Hundreds of damaged copies of a checkpoint through the whole lane.

Damage of structure ends in an error that names it, in under a second of CPU time and under 200 MB;
any other damage in an error or in a finite answer; nothing ends in a crash, a hang, a NaN or a
traceback.
"""

from __future__ import annotations

import shutil
import struct
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.hostile import damage
from tests.hostile.conftest import GOLDEN, TINY, Job, Outcome, drive
from tests.hostile.damage import ANY, FINE, Copy
from tests.hostile.gguf_edit import Doc, parse

SECOND = 1.0
MEMORY = 200 << 20
# Errors that tell of a defect of ours, and not of the file.
OURS = ("graph.", "plan.", "build.", "run.constant", "run.buffer", "run.scalar", "internal")


def judge(wanted: str, got: Outcome) -> str:
    """'' if the outcome is as wanted, else what is wrong with it."""
    code = got.code
    if code in ("TRACEBACK", "DIED") or code.startswith(OURS):
        return f"{code}: {got.message} {got.trace}"
    if code and not got.remedy:
        return f"{code} without a remedy: {got.message}"
    # What is found when a template or a form runs comes after the weights were loaded.
    runs = wanted in (FINE, ANY) or wanted.startswith(("run.", "text.template", "usage."))
    if got.peak > MEMORY + (MEMORY if runs else 0):
        return f"{got.peak >> 20} MB"
    if wanted == FINE:
        return code and f"{code}: {got.message}"
    if wanted == ANY:
        return ""
    if not any(code == w or code.startswith(w + ".") for w in wanted.split("|")):
        return f"{code or 'an answer'} instead of {wanted}: {got.message}"
    return f"{got.cpu_s:.2f} s" if got.cpu_s > SECOND else ""


def through(
    copies: list[Copy], cache: Path, work: Path, group: int = 200
) -> dict[str, Outcome]:
    """Every copy written, driven and judged; name -> outcome."""
    jobs = []
    for i, copy in enumerate(copies):
        jobs.append(Job(copy.name, work / f"{i:04}.gguf"))
        copy.write(jobs[-1].path)
    return judged(jobs, {c.name: c.wanted for c in copies}, cache, work, group)


def judged(
    jobs: list[Job], wanted: dict[str, str], cache: Path, work: Path, group: int = 200
) -> dict[str, Outcome]:
    assert len(wanted) == len(jobs), "two jobs have one name"
    found = drive(jobs, cache, work, group)
    wrong = [f"{n}: {why}" for n, want in wanted.items() if (why := judge(want, found[n]))]
    assert not wrong, "\n" + "\n".join(wrong)
    return found


def test_a_tiny_checkpoint(compiled, tmp_path):
    copies = list(damage.copies(TINY.read_bytes(), cuts=30, header=60, weights=40))
    assert len(copies) > 350
    outcomes = through(copies, compiled, tmp_path)
    sound = outcomes["sound"]
    assert sound.ids and not sound.code
    codes = Counter(o.code for o in outcomes.values())
    # The damage reaches every stage, from the first byte to the numbers, and flips of weights
    # are seen in what comes out (else the file that was damaged was not the file that ran).
    assert {c.split(".")[0] for c in codes} >= {"", "checkpoint", "model", "text", "usage", "run"}
    assert len(codes) >= 20, codes
    flips = {c.name for c in copies if c.name.startswith("flip")}
    assert any(outcomes[n].ids not in ((), sound.ids) for n in flips)


@pytest.mark.parametrize("name", [
    "qwen3_tied.q8_0",
    *(pytest.param(n, marks=pytest.mark.slow) for n in ("llama3_untied.f32", "llama_tied.f16")),
])  # fmt: skip
def test_other_families_and_formats(compiled, tmp_path, name):
    raw = (GOLDEN / f"{name}.gguf").read_bytes()
    header = raw.index(b"output_norm.weight") + 64
    copies = [
        Copy("sound", raw, FINE),
        *damage.truncated(raw, header, 6),
        *damage.flipped(raw, 0, header, 15, seed=5),
        *damage.flipped(raw, header, len(raw), 15, seed=6),
    ]
    through(copies, compiled, tmp_path)


def demo(path: Path) -> tuple[Doc, int]:
    """The header of the demo model over a hole, and where its data begins."""
    raw = path.read_bytes()
    at = raw.index(b"output_norm.weight") + 4096  # the last of the table, and what follows it
    doc = parse(raw[:at], hole=1)
    doc.data.clear()
    begin = len(doc.header())
    doc.size = len(raw) - begin
    return doc, begin


def headers(path: Path, cuts: int, flips: int, step: int) -> Iterator[Copy]:
    doc, begin = demo(path)
    with path.open("rb") as file:
        raw = file.read(begin)
    size = begin + doc.size
    yield from damage.changed(doc, islice(damage.structure(doc), 0, None, step))
    yield from damage.truncated(raw, len(raw) - 2, cuts)
    table = raw.index(b"token_embd.weight") - 8
    for low, high in ((0, 3000), (table, begin), (0, begin)):
        for copy in damage.flipped(raw, low, high, flips, seed=low):
            yield Copy(f"{low}: {copy.name}", copy.data, ANY, size)


def numbers(doc: Doc, begin: int, flips: int) -> Iterator[tuple[str, str, list[Any]]]:
    """(name, wanted, patches) of damaged numbers in the demo model's q4_1 blocks and gains."""

    def at(tensor: str) -> int:
        return begin + doc.row(tensor).offset

    for name, word in (("NaN", 0x7FC00000), ("inf", 0x7F800000), ("3e38", 0x7F61B1E6)):
        for tensor in ("blk.0.attn_norm.weight", "blk.29.ffn_norm.weight", "output_norm.weight"):
            wanted = "run.not_finite" if name != "3e38" else ANY
            yield f"{tensor} holds {name}", wanted, [(at(tensor) + 20, struct.pack("<I", word))]
    for name, word in (("NaN", 0x7E00), ("inf", 0x7C00), ("65504", 0x7BFF)):
        for tensor in ("blk.0.attn_v.weight", "blk.15.ffn_down.weight"):
            for part in (0, 2):
                place = at(tensor) + 20 * 77 + part
                yield f"{tensor} {part} is {name}", ANY, [(place, struct.pack("<H", word))]
    rng = np.random.default_rng(3)
    for i in range(flips):
        places = rng.integers(begin, begin + doc.size, 4)
        yield f"flips {i}", ANY, [(int(p), rng.bytes(1)) for p in places]


@pytest.mark.model
def test_the_demo_model_with_a_damaged_header(smollm2_path, compiled, tmp_path):
    copies = list(headers(smollm2_path, cuts=4, flips=4, step=12))
    assert len(copies) > 35
    through(copies, compiled, tmp_path, group=12)


@pytest.mark.model
def test_the_demo_model_with_damaged_numbers(smollm2_path, compiled, tmp_path):
    _patched(smollm2_path, compiled, tmp_path, flips=1, step=4)


@pytest.mark.slow
@pytest.mark.model
def test_the_demo_model_in_full(smollm2_path, compiled, tmp_path):
    copies = list(headers(smollm2_path, cuts=20, flips=20, step=1))
    assert len(copies) > 300
    through(copies, compiled, tmp_path, group=12)
    _patched(smollm2_path, compiled, tmp_path, flips=20, step=1)


def _patched(model: Path, cache: Path, work: Path, flips: int, step: int) -> None:
    doc, begin = demo(model)
    scratch = work / "copy.gguf"
    shutil.copyfile(model, scratch)
    rows = list(numbers(doc, begin, flips))[::step]
    jobs = [Job(name, scratch, tuple(patches)) for name, _, patches in rows]
    # One process each: what the memory of one file is would be lost in that of another.
    found = judged(jobs, {name: wanted for name, wanted, _ in rows}, cache, work, group=8)
    assert any(got.code for got in found.values())
