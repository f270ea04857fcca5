"""A plan cache is on disk too: a second process starts from what the first one built."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.house.rules import ROOT

PROGRAM = """
import json, subprocess, sys
import numpy as np
from lanewise import tensor as t

started = []
plain = subprocess.Popen.__init__
def counted(self, args, *more, **named):
    started.append(args if isinstance(args, str) else args[0])
    plain(self, args, *more, **named)
subprocess.Popen.__init__ = counted

def record(b):
    b.scalar("s")
    x = b.input("x", t.f32, (3, int(sys.argv[1])))
    b.output("y", t.scale(t.linear(x, b.weight("w", t.f32, (5, int(sys.argv[1])))), "s"))

with t.Runtime("cpu", threads=1) as rt, t.PlanCache(rt) as cache:
    plan = cache.compile(record)
    n = int(sys.argv[1])
    x = np.arange(3 * n, dtype=np.float32).reshape(3, n)
    y = np.zeros((3, 5), np.float32)
    plan.submit(x=x, w=np.ones((5, n), np.float32), y=y, s=2.0).wait()
    assert (y == 2 * x.sum(1, keepdims=True)).all()
    assert cache.compile(record) is plan and len(cache) == 1
    print(json.dumps({"started": len(started), "identity": plan.identity,
                      "program": plan.program.identity}))
"""


def run(cache: Path, width: int) -> dict[str, object]:
    env = {**os.environ, "LANEWISE_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(width)], capture_output=True,
                          text=True, timeout=300, env=env)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_second_process_compiles_nothing(tmp_path):
    first, second, other = (run(tmp_path, n) for n in (8, 8, 9))
    assert first["started"] and not second["started"]
    assert (first["identity"], first["program"]) == (second["identity"], second["program"])
    assert other["started"] and other["identity"] != first["identity"]
