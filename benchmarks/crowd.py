"""Decoding on a busy machine: tokens a second among twice as many busy processes as there are
cores, and under a cgroup's quota, as shares of what it writes alone.

    python benchmarks/crowd.py MODEL [--busy N] [--seconds 3] [--rounds 5] [--json]

With C cores, T threads and B busy processes a fair scheduler gives each C / (B + T) of a core: a
third for as many threads as cores among twice as many.  "of fair" is the rate / the rate alone
over that share; what is lost to waiting for threads that do not run shows as less than 1.  Each
round measures alone, crowded and throttled in turn, on all cores and on one thread; ratios are
within a round, medians are told.  The quota is half of the machine, in a cgroup of its own;
where none can be made, the notes say so.  The busy processes end with the script, however it ends.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks import telling  # noqa: E402

# Spins until its parent is gone, should nobody end it.
SPIN = """
import os, sys
parent = int(sys.argv[1])
print(flush=True)
while os.getppid() == parent:
    for _ in range(1000000):
        pass
"""
PERIOD_US = 100_000


@contextmanager
def crowd(count: int) -> Iterator[list[int]]:
    """So many busy processes; their ids.  All are at work when it begins and gone when it ends."""
    made: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            command = [sys.executable, "-I", "-S", "-c", SPIN, str(os.getpid())]
            made.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        for each in made:
            assert each.stdout is not None
            each.stdout.readline()
        yield [each.pid for each in made]
    finally:
        for each in made:
            each.kill()
        for each in made:
            each.wait()
            if each.stdout is not None:
                each.stdout.close()


class NoQuota(RuntimeError):
    """No cgroup with a quota can be made here."""


def own_cgroup(text: str, root: Path) -> Path:
    """The cgroup of this process that has to do with CPUs, by /proc/self/cgroup: of v1's cpu
    controller, or of v2; NoQuota if there is none."""
    found: list[tuple[Path, str]] = []
    for line in text.splitlines():
        number, names, inner = line.split(":", 2)
        if "cpu" in names.split(","):
            found.insert(0, (root / names, inner))
        elif number == "0" and not names:
            found += [(root, inner), (root / "unified", inner)]
    for base, inner in found:
        if (base / "cgroup.procs").exists():
            folder = base / inner.strip("/")
            return folder if folder.is_dir() else base
    raise NoQuota("no cgroup of CPUs is mounted")


def limit(folder: Path, cpus: float) -> bool:
    """Give a cgroup so many CPUs' time; False if it takes no quota."""
    us = round(cpus * PERIOD_US)
    if (folder / "cpu.max").exists():
        (folder / "cpu.max").write_text(f"{us} {PERIOD_US}")
    elif (folder / "cpu.cfs_quota_us").exists():
        (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (folder / "cpu.cfs_quota_us").write_text(str(us))
    else:
        return False
    return True


@contextmanager
def quota(cpus: float, own: Path, make: Callable[[Path], None] = Path.mkdir) -> Iterator[None]:
    """This process in a new cgroup that gets so many CPUs' time, beside its own or in it; no
    cgroup that was there is changed.  Raises NoQuota."""
    pid, problem = str(os.getpid()), "the cpu controller is not handed on"
    for base in (own.parent, own):
        if not (base / "cgroup.procs").exists():
            continue
        folder = base / f"lanewise-quota-{pid}"
        try:
            make(folder)
        except OSError as error:
            problem = f"{error.strerror}: {folder}"
            continue
        try:
            if not limit(folder, cpus):
                continue
            (folder / "cgroup.procs").write_text(pid)
        except OSError as error:
            problem = f"{error.strerror}: {folder}"
        else:
            try:
                yield
            finally:
                (own / "cgroup.procs").write_text(pid)
            return
        finally:
            folder.rmdir()
    raise NoQuota(problem)


def fair(cores: int, threads: int, busy: int) -> float:
    """The share of its own rate that `threads` threads get beside `busy` processes."""
    return min(1.0, cores / (busy + threads))


def decode_rate(lane: Any, seconds: float) -> float:
    """Tokens a second, written for so long (whole answers; ends of answers start another)."""
    tokens, took, start = 0, 0.0, 1
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        start = (start * 31 + 17) % lane.spec.vocab
        generation = lane.generate([start], max_tokens=200, temperature=0, speculate="off")
        for _ in generation:
            if time.perf_counter() >= until:
                generation.close()
        tokens += generation.timings.tokens - 1
        took += generation.timings.generate_s
    return tokens / took if took > 0 else 0.0


Rates = dict[str, dict[int, list[float]]]  # by state ("alone", ...) and threads, one a round


def record(model: str, rates: Rates, shares: dict[str, dict[int, float]]) -> dict[str, Any]:
    """Medians, ratios to alone, and how much of the fair share that is."""
    rows = []
    for state, by_threads in rates.items():
        for threads, found in by_threads.items():
            row: dict[str, Any] = {
                "state": state, "threads": threads, "tok_s": round(statistics.median(found), 2),
            }  # fmt: skip
            if state != "alone":
                ratio = telling.ratio(found, rates["alone"][threads])
                share = shares[state][threads]
                row |= {"of_alone": round(ratio, 3), "fair": round(share, 3),
                        "of_fair": round(ratio / share, 3)}  # fmt: skip
            rows.append(row)
    return {"model": Path(model).name, "rows": rows}


def measure(model: str, args: argparse.Namespace) -> dict[str, Any]:
    import lanewise as lw
    from lanewise.runtime.cpus import affinity

    cores = args.cores or affinity()
    busy = 2 * cores if args.busy is None else args.busy
    cpus = cores / 2
    states = {"alone": lambda: ExitStack(), "crowded": lambda: crowd(busy)}
    notes = []
    try:
        own = own_cgroup(Path("/proc/self/cgroup").read_text(), Path("/sys/fs/cgroup"))
        with quota(cpus, own):
            pass
        states["throttled"] = lambda: quota(cpus, own)
    except (NoQuota, OSError) as error:
        notes.append(f"not throttled: {error}")
    counts = sorted({cores, 1}, reverse=True)
    shares = {
        "crowded": {t: fair(cores, t, busy) for t in counts},
        "throttled": {t: min(1.0, cpus / t) for t in counts},
    }
    with ExitStack() as stack:
        lanes = {t: stack.enter_context(lw.compile(model, threads=t)) for t in counts}
        for lane in lanes.values():
            decode_rate(lane, args.seconds / 2)
        rates: Rates = {state: {t: [] for t in counts} for state in states}
        for _ in range(args.rounds):
            for state, enter in states.items():
                with enter():
                    for t, lane in lanes.items():
                        rates[state][t].append(decode_rate(lane, args.seconds))
    told = record(model, rates, shares)
    return {**told, "cores": cores, "busy": busy, "quota_cpus": cpus, "notes": notes}


def main(words: Sequence[str] | None = None) -> None:
    p = telling.parser(__doc__)
    p.add_argument("model")
    p.add_argument("--busy", type=int, help="processes; twice the cores if not given")
    p.add_argument("--cores", type=int, help="that this process may use, if it cannot tell")
    p.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    p.add_argument("--rounds", type=int, default=5)
    args = p.parse_args(words)
    told = measure(args.model, args)
    rows = [
        [r["state"], str(r["threads"]), f"{r['tok_s']:.1f}",
         *(f"{r[k]:.2f}" if k in r else "" for k in ("of_alone", "fair", "of_fair"))]
        for r in told["rows"]
    ]  # fmt: skip
    head = [told["model"], "threads", "tok/s", "of alone", "fair share", "of fair"]
    notes = [f"{told['cores']} cores, {told['busy']} busy processes", *told["notes"]]
    telling.tell(args, told, head, rows, notes)


if __name__ == "__main__":
    main()
