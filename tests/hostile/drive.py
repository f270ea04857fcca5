"""Runs many files through the whole lane in one process, and says what became of each.

    python -m tests.hostile.drive LIST OUT

LIST: one {"name", "path", "patches": [[at, hex], ...]} a line; patches are written into the
file, and taken back after it.  The weights that were packed for a file go with it.  OUT gets one
JSON object a line: first {"begin": name}, so that a process that dies is seen to have died of
that one, then {"name", "code", "message", "remedy", "trace", "cpu_s", "peak", ...}.  Code "" is
an answer whose every logit is finite.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import lanewise as lw

MESSAGES = [{"role": "user", "content": "the hat in a hut: 12 ñ 日本"}]


def peak(*, reset: bool = False) -> int:
    """The most memory that this process has held since the last reset, in bytes."""
    if reset:
        with contextlib.suppress(OSError):  # a sandbox may forbid it: then since the start
            Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def cpu() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def answer(path: str) -> dict[str, Any]:
    """Compile, chat greedily, chat with dice, and read logits; what came out."""
    with lw.compile(path, threads=1, max_chunk=64) as lane:
        greedy = lane.chat(MESSAGES, max_tokens=4, temperature=0)
        greedy.read()
        dice = lane.chat(MESSAGES, max_tokens=2, temperature=1.0, seed=7)
        dice.read()
        logits = lane.logits(greedy.prompt_ids)
        assert logits.dtype == np.float32 and np.isfinite(logits).all()
        return {"ids": greedy.ids, "dice": dice.ids, "last": int(logits[-1].argmax())}


def one(path: str) -> dict[str, Any]:
    peak(reset=True)
    begin = cpu()
    found: dict[str, Any] = {"code": "", "message": "", "remedy": "", "trace": ""}
    try:
        found |= answer(path)
    except lw.LanewiseError as error:
        found |= {"code": error.code, "message": str(error), "remedy": error.remedy}
        if isinstance(error, lw.Refused):
            found["remedy"] = " ".join(e.remedy for e in error.errors)
    except BaseException as error:
        found |= {"code": "TRACEBACK", "message": repr(error), "trace": traceback.format_exc()}
    return {**found, "cpu_s": cpu() - begin, "peak": peak()}


@contextlib.contextmanager
def patched(path: str, patches: list[tuple[int, str]]) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR)
    try:
        before = [(at, os.pread(fd, len(text) // 2, at)) for at, text in patches]
        for at, text in patches:
            os.pwrite(fd, bytes.fromhex(text), at)
        yield
        for at, raw in reversed(before):
            os.pwrite(fd, raw, at)
    finally:
        os.close(fd)


def main() -> None:
    listed, out = Path(sys.argv[1]), Path(sys.argv[2])
    weights = Path(os.environ["LANEWISE_CACHE_DIR"]) / "weights"
    with out.open("w", buffering=1) as file:
        for line in listed.read_text().splitlines():
            row = json.loads(line)
            file.write(json.dumps({"begin": row["name"]}) + "\n")
            with patched(row["path"], row["patches"]):
                file.write(json.dumps({"name": row["name"], **one(row["path"])}) + "\n")
            shutil.rmtree(weights, ignore_errors=True)


if __name__ == "__main__":
    main()
