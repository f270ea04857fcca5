"""Memory and time of a model's first start (compiling, packing) and of those after it.

    python benchmarks/memory.py MODEL ... [--context 1024] [--starts 5] [--threads N]
                                [--kernels CACHE] [--json]

Each start is a process of its own over a fresh cache, its files in the page cache.  It writes one
token after a text of one letter, then fills the context with a prompt.  "of needed" is its resident
peak (VmHWM) over file + KV of the context + arena (with each thread's private part and scratch);
"base" is what Python and the libraries held before the model, and is part of the peak.  Seconds
run from before the process to its first token; "beyond load" is that less what lanewise took to
read the weights, "beyond read" less what a plain read of as many bytes takes (all threads, into
memory that is there, the least of several).  After the first start: medians.

--kernels takes the compiled kernels of another cache, so that the first start only packs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks import telling  # noqa: E402

_PIECE = 8 << 20
_GENERATE = 8
STAGES = ("_pack", "_read", "_map")  # of runtime/weights.py


# -- a start: in a process of its own -------------------------------------------------------------


def status(field: str) -> int:
    """Bytes of a field of /proc/self/status."""
    text = Path("/proc/self/status").read_text()
    return int(text.split(f"{field}:")[1].split()[0]) * 1024


def watched(took: dict[str, float]) -> None:
    """Have the stages of loading weights add their seconds to `took`."""
    from lanewise.runtime import weights

    def wrapped(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **more: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **more)
            finally:
                took[name] = took.get(name, 0.0) + time.perf_counter() - began

        return run

    for name in STAGES:
        setattr(weights, name, wrapped(name, getattr(weights, name)))


def start(model: str, began: float, context: int, threads: int | None) -> dict[str, Any]:
    """Open a model, write a token, fill the context; `began` is by time.monotonic()."""
    import lanewise as lw
    import lanewise.lane
    from lanewise import settings

    took: dict[str, float] = {}
    watched(took)
    base = status("VmRSS")
    with lw.compile(model, context=context, threads=threads, speculate="off") as lane:
        vocab = lane.spec.vocab
        lane.generate("a", max_tokens=1, temperature=0).read()
        first_s = time.monotonic() - began
        opened = status("VmHWM")
        prompt = [(7 * i + 2) % vocab for i in range(context - _GENERATE)]
        lane.generate(prompt, max_tokens=_GENERATE, temperature=0).read()
        p = lane.program
        arena = p.arena_bytes + lane.threads * (p.private_bytes + p.scratch_bytes)
        kv = lane.spec.kv_bytes(context, settings.get("kv"))
        packed = sum(c.nbytes for c in p.constants if c.name != "rope")
        held = {"anon": status("RssAnon"), "mapped": status("RssFile")}
    return {
        "first_s": first_s, "pack_s": took.get("_pack", 0.0),
        "load_s": took.get("_read", 0.0) + took.get("_map", 0.0),
        "base": base, "opened_peak": opened, "peak": status("VmHWM"), "kv": kv, "arena": arena,
        "packed": packed, **held,
    }  # fmt: skip


# -- the parent -----------------------------------------------------------------------------------


def started(path: str, cache: Path, args: argparse.Namespace) -> dict[str, Any]:
    """What one start tells."""
    command = [sys.executable, __file__, path, "--context", str(args.context)]
    command += ["--threads", str(args.threads)] if args.threads else []
    env = {k: v for k, v in os.environ.items() if not k.startswith("LANEWISE_")}
    env["LANEWISE_CACHE_DIR"] = str(cache)
    done = subprocess.run([*command, "--start", repr(time.monotonic())], env=env,
                          capture_output=True, text=True)  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"a start failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def read_s(path: Path, threads: int, runs: int = 5) -> float:
    """The least seconds in which a file's bytes are read into memory that is there already."""
    size = path.stat().st_size
    memory = memoryview(bytearray(size))
    with open(path, "rb") as file, ThreadPoolExecutor(threads) as workers:
        number = file.fileno()

        def piece(at: int) -> int:
            return os.preadv(number, [memory[at : at + _PIECE]], at)

        def once() -> float:
            began = time.perf_counter()
            if sum(workers.map(piece, range(0, size, _PIECE))) != size:
                raise RuntimeError(f"{path.name} was not read whole")
            return time.perf_counter() - began

        return min(once() for _ in range(runs))


def record(
    model: str, nbytes: int, first: dict[str, Any], others: Sequence[dict[str, Any]], plain: float
) -> dict[str, Any]:
    """Of the first start and of the median of the others: peak over needed, and seconds."""
    out: dict[str, Any] = {"model": Path(model).name, "file": nbytes, "read_s": round(plain, 4)}
    middle = {k: statistics.median(o[k] for o in others) for k in first}
    middle["peak"] = max(o["peak"] for o in others)
    for name, s in (("first", first), ("second", middle)):
        needed = nbytes + s["kv"] + s["arena"]
        out[name] = {
            "peak": s["peak"], "needed": needed, "of_needed": round(s["peak"] / needed, 3),
            **{k: s[k] for k in ("base", "kv", "arena", "packed", "opened_peak", "anon", "mapped")},
            "first_s": round(s["first_s"], 3), "pack_s": round(s["pack_s"], 3),
            "load_s": round(s["load_s"], 3),
            "beyond_load_s": round(s["first_s"] - s["load_s"] - s["pack_s"], 3),
            "beyond_read_s": round(s["first_s"] - plain, 3),
        }  # fmt: skip
    pack = out["first"]["pack_s"]
    out["pack_gb_s"] = round(first["packed"] / pack / 1e9, 2) if pack else None
    return out


def measure(model: str, args: argparse.Namespace) -> dict[str, Any]:
    from lanewise.checkpoint import names
    from lanewise.runtime.cpus import available_cpus

    path = Path(names.resolve(model))
    with tempfile.TemporaryDirectory(prefix="lanewise-memory-") as folder:
        cache = Path(folder)
        if args.kernels:
            shutil.copytree(Path(args.kernels, "cpu"), cache / "cpu")
        first = started(str(path), cache, args)
        others = [started(str(path), cache, args) for _ in range(args.starts)]
        (sidecar,) = (cache / "weights").glob("*.weights")
        plain = read_s(sidecar, args.threads or available_cpus())
    return record(model, path.stat().st_size, first, others, plain)


def options(words: Sequence[str] | None) -> argparse.Namespace:
    p = telling.parser(__doc__)
    p.add_argument("models", nargs="+")
    p.add_argument("--context", type=int, default=1024, help="positions, all of them filled")
    p.add_argument("--starts", type=int, default=5, help="after the first")
    p.add_argument("--threads", type=int)
    p.add_argument("--kernels", help="a cache whose compiled kernels are taken")
    p.add_argument("--start", type=float, help=argparse.SUPPRESS)
    return p.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    args = options(words)
    if args.start is not None:
        print(json.dumps(start(args.models[0], args.start, args.context, args.threads)))
        return
    told = [measure(model, args) for model in args.models]
    rows, notes = [], []
    for t in told:
        for name in ("first", "second"):
            s = t[name]
            rows.append([
                t["model"], name, *(f"{s[k] / 1e6:.1f}" for k in ("peak", "needed", "base")),
                f"{s['of_needed']:.3f}",
                *(f"{s[k]:.2f}" for k in ("first_s", "pack_s", "load_s", "beyond_load_s",
                                          "beyond_read_s")),
            ])  # fmt: skip
        notes.append(
            f"{t['model']}: packed at {t['pack_gb_s']} GB/s, into "
            f"{t['first']['packed'] / t['file']:.3f} of the file; a plain read takes "
            f"{t['read_s']:.3f} s; at the end {t['second']['anon'] / 1e6:.1f} MB anonymous, "
            f"{t['second']['mapped'] / 1e6:.1f} of files"
        )
    head = ["model", "start", "peak MB", "needed", "base", "of needed", "first token s", "pack",
            "load", "beyond load", "beyond read"]  # fmt: skip
    telling.tell(args, {"rows": told}, head, rows, notes)


if __name__ == "__main__":
    main()
