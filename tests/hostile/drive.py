"""Runs many files through the whole lane in one process, and says what became of each.

    python -m tests.hostile.drive LIST OUT

LIST: one path a line.  OUT gets one JSON object a line: first {"begin": path}, so that a process
that dies is seen to have died of that file, then {"path", "code", "message", "remedy", "trace",
"cpu_s", "peak", ...}.  Code "" is an answer whose every logit is finite.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

import lanewise as lw

MESSAGES = [{"role": "user", "content": "the hat in a hut: 12 ñ 日本"}]


def peak() -> int:
    """The most memory that this process ever held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


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
    begin = cpu()
    found: dict[str, Any] = {"path": path, "code": "", "message": "", "remedy": "", "trace": ""}
    try:
        found |= answer(path)
    except lw.LanewiseError as error:
        found |= {"code": error.code, "message": str(error), "remedy": error.remedy}
        if isinstance(error, lw.Refused):
            found["remedy"] = " ".join(e.remedy for e in error.errors)
    except BaseException as error:
        found |= {"code": "TRACEBACK", "message": repr(error), "trace": traceback.format_exc()}
    return {**found, "cpu_s": cpu() - begin, "peak": peak()}


def main() -> None:
    paths, out = Path(sys.argv[1]), Path(sys.argv[2])
    with out.open("w", buffering=1) as file:
        for path in paths.read_text().splitlines():
            file.write(json.dumps({"begin": path}) + "\n")
            file.write(json.dumps(one(path)) + "\n")


if __name__ == "__main__":
    main()
