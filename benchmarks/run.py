"""Ours beside its peers, in turns, on this machine; ratios to benchmarks/RESULTS.md and a plot.

    python benchmarks/run.py MODEL ... [--work 512,64] [--work 4096,64] [--activations int8x2,int8]
        --peers [--peer-python peer/bin/python --peer-script llama_cpp_peer.py] [--ik llama-bench]

Every round runs every engine in every setting once, in an order that turns round from round to
round, so that drift (heat, neighbours) falls on all alike.  A peer counts with the setting that is
best for a test (by its median over the rounds); a ratio is ours / peer's within a round, and the
median of the rounds is told.  Prompts are read on an empty cache, tokens are written after the
prompt.  Without --peers ours is measured alone.

With --steady 48 every run of every engine waits until the machine's memory reads 48 GB/s, and is
repeated where neighbours took it meanwhile (benchmarks/steady.py).

"of limit": the share of what the machine can do, by the ruler of `lanewise bench` (its best read
rate and multiply-add peak over all runs of a model count).
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks import engines, plot, steady  # noqa: E402
from benchmarks.engines import Engine, Failed, Told, Work  # noqa: E402
from lanewise.runtime import ruler  # noqa: E402

RESULTS = ROOT / "benchmarks" / "RESULTS.md"
PLOT = ROOT / "benchmarks" / "results.svg"


@dataclass
class Race:
    """A model's runs: for each engine's name, what it told in each round (None: it failed)."""

    model: str
    work: Work
    entries: list[Engine]
    told: dict[str, list[Told | None]] = field(default_factory=dict)

    def rates(self, engine: Engine, test: str) -> list[float | None]:
        return [t.rates[test] if t else None for t in self.told[engine.name]]

    def median(self, engine: Engine, test: str) -> float | None:
        found = [r for r in self.rates(engine, test) if r is not None]
        return statistics.median(found) if found else None

    def best(self, family: str, test: str) -> Engine | None:
        """The setting of a family with the highest median."""
        among = [e for e in self.entries if e.family == family]
        found = [(m, e) for e in among if (m := self.median(e, test)) is not None]
        return max(found, key=lambda x: x[0])[1] if found else None

    def ratios(self, mine: Engine, theirs: Engine, test: str) -> list[float]:
        """Ours / theirs, of the rounds that both ran."""
        pairs = zip(self.rates(mine, test), self.rates(theirs, test), strict=True)
        return [a / b for a, b in pairs if a is not None and b]

    def of_limit(self, mine: Engine, test: str) -> float | None:
        """The median share of the limit, against the best limit that any run measured."""
        key = "read" if test.startswith("tg") else "int8"
        runs = [t for t in self.told[mine.name] if t and t.more.get("of_limit", {}).get(test)]
        everyone = [t for ts in self.told.values() for t in ts if t and t.more.get("limits")]
        best = max((lim[key] for t in everyone for lim in t.more["limits"].values()), default=0.0)
        if not runs:
            return None
        shares = [
            t.more["of_limit"][test] * (t.more["limits"][test][key] / best if best else 1.0)
            for t in runs
        ]
        return statistics.median(shares)


def race(
    model: str, path: str, work: Work, entries: list[Engine], rounds: int,
    gate: steady.Gate | None = None,
) -> Race:
    """Run all rounds; a run that fails is told on stderr and left out."""
    found = Race(model, work, entries, {e.name: [] for e in entries})
    for turn in range(rounds):
        for entry in entries if turn % 2 == 0 else reversed(entries):
            try:
                told = _once(entry, path, work, gate)
            except Failed as error:
                print(f"{entry.name} on {model}: {error}", file=sys.stderr)
                told = None
            found.told[entry.name].append(told)
            rates = " ".join(f"{k} {v:.1f}" for k, v in told.rates.items()) if told else "failed"
            print(f"{model} {turn + 1}/{rounds} {entry.name}: {rates}", file=sys.stderr, flush=True)
    return found


def _once(entry: Engine, path: str, work: Work, gate: steady.Gate | None) -> Told:
    return gate.run(lambda: entry.run(path, work)) if gate else entry.run(path, work)


def lineup(args: argparse.Namespace) -> list[Engine]:
    """The engines that the options ask for, ours first."""
    found = [engines.ours(name) for name in args.activations.split(",")]
    if args.peers and args.peer_script:
        found += [engines.script(args.peer_python, args.peer_script, flash) for flash in (0, 1)]
    if args.peers and args.ik:
        found += [engines.llama_bench(args.ik, flash) for flash in (0, 1)]
    return found


def path_of(model: str) -> str:
    """A peer knows no names: the file that a name means."""
    if Path(model).is_file():
        return model
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return engines.last_json(engines.output([*engines.OURS, "pull", model, "--json"], env))["path"]


# -- the report -----------------------------------------------------------------------------------


def machine() -> str:
    """The CPU's name, cores that we may use, the system, and how busy it is."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = f", load average {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{name}, {count} cores, {platform.system()} {platform.machine()}{load}"


def commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
        return done.stdout.strip()

    dirty = " with changes" if git("status", "--porcelain", "--", "src") else ""
    return (git("rev-parse", "--short", "HEAD") or "unknown") + dirty


def shown(word: str) -> str:
    """A path by its last part: where things lie on one machine helps nobody on another."""
    return Path(word).name if "/" in word else word


def table(races: Sequence[Race]) -> list[str]:
    """A row for every model, test and recipe of ours."""
    peers = list(dict.fromkeys(e.family for r in races for e in r.entries if e.family != "ours"))
    head = ["model", "test", "activations", "ours tok/s", "of limit"]
    for family in peers:
        head += [f"{family} tok/s", "ours / it", "rounds"]
    lines = [_row(head), _row(["---", "---", "---", *["---:"] * (len(head) - 3)])]
    for r in races:
        for test in r.work.tests:
            for mine in (e for e in r.entries if e.family == "ours"):
                rate, share = r.median(mine, test), r.of_limit(mine, test)
                cells = [Path(r.model).name, test, mine.setting, _number(rate, 1)]
                cells.append(_number(share, 2))
                for family in peers:
                    cells += _against(r, mine, r.best(family, test), test)
                lines.append(_row(cells))
    return lines


def _against(r: Race, mine: Engine, theirs: Engine | None, test: str) -> list[str]:
    if theirs is None:
        return ["failed", "", ""]
    ratios = r.ratios(mine, theirs, test)
    middle = f"**{statistics.median(ratios):.2f}**" if ratios else ""
    rate = f"{_number(r.median(theirs, test), 1)} ({theirs.setting})"
    return [rate, middle, " ".join(f"{x:.2f}" for x in ratios)]


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def report(args: argparse.Namespace, races: Sequence[Race]) -> str:
    """A section of RESULTS.md."""
    tolds = [t for r in races for ts in r.told.values() for t in ts if t]
    versions = sorted({t.version for t in tolds if t.version})
    limits = [lim for t in tolds for lim in t.more.get("limits", {}).values() if lim]
    peak = max((t.more.get("peak", 0) for t in tolds), default=0)
    lines = [
        f"## {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC, commit {commit()}",
        "",
        f"- machine: {args.machine}; {args.threads} threads; f16 caches; our peak {peak / 1e9:.2f} "
        "GB",
        f"- peers: {', '.join(versions) or 'none'}; {args.rounds} rounds, runs of {args.repeat}",
        f"- command: `python benchmarks/run.py {' '.join(shown(a) for a in sys.argv[1:])}`",
    ]
    if limits:
        best = {k: max(lim[k] for lim in limits) for k in ("read", *ruler.KINDS)}
        lines.append(
            f"- limits: read {best['read']:.1f} GB/s; 10^9 multiply-adds a second: "
            f"{ruler.shown(best)}"
        )
    if args.gate is not None:
        lines.append(f"- {args.gate.told()}")
    return "\n".join([*lines, "", *table(races)]) + "\n"


def bars(races: Sequence[Race]) -> list[plot.Group]:
    """What the plot shows: tokens a second of each engine as shares of the machine's limit."""
    groups: list[plot.Group] = []
    for r in races:
        for test in r.work.tests:
            default = r.entries[0]
            rate, share = r.median(default, test), r.of_limit(default, test)
            if not rate or not share:
                continue
            families = dict.fromkeys(e.family for e in r.entries if e.family != "ours")
            shown_engines: list[tuple[str, Engine | None]] = [
                *((e.name, e) for e in r.entries if e.family == "ours"),
                *((family, r.best(family, test)) for family in families),
            ]
            found = [
                plot.Bar(name, value, value / rate * share)
                for name, e in shown_engines if e and (value := r.median(e, test))
            ]  # fmt: skip
            groups.append(plot.Group(Path(r.model).stem, test, found))
    return groups


def options(words: Sequence[str] | None = None) -> Any:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("models", nargs="+", help=".gguf files or names")
    p.add_argument("--peers", action="store_true", help="race those that are given")
    p.add_argument("--peer-python", default=sys.executable)
    p.add_argument("--peer-script", help="of llama.cpp")
    p.add_argument("--ik", help="ik_llama.cpp's llama-bench")
    p.add_argument("--work", action="append", help="prompt,generate; several times for several")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--repeat", type=int, default=2)
    p.add_argument("--activations", default="int8x2,int8")
    p.add_argument("--steady", type=float, metavar="RATE",
                   help="count only runs while memory reads so many GB/s (up to 1: a share of "
                   "the best rate seen)")
    p.add_argument("--dry", action="store_true", help="print only, write nothing")
    args = p.parse_args(words)
    try:
        pairs = [tuple(int(n) for n in w.split(",")) for w in args.work or ["512,64"]]
        args.works = [Work(a, b, args.threads, args.repeat) for a, b in pairs]
    except ValueError:
        p.error("--work wants two numbers: prompt,generate")
    if args.peers and not (args.peer_script or args.ik):
        p.error("--peers wants --peer-script or --ik")
    return args


def main(words: Sequence[str] | None = None) -> None:
    args = options(words)
    args.machine = machine()
    args.gate = steady.Gate(args.steady, steady.Memory(args.threads)) if args.steady else None
    entries = lineup(args)
    races = [
        race(model, path_of(model), work, entries, args.rounds, args.gate)
        for model in args.models for work in args.works
    ]  # fmt: skip
    text = report(args, races)
    print(text)
    if not args.dry:
        old = RESULTS.read_text() if RESULTS.exists() else "# Results\n\nNewest last.\n"
        RESULTS.write_text(f"{old.rstrip()}\n\n{text}")
        title = f"Share of what the machine can do ({entries[0].setting})"
        PLOT.write_text(plot.svg(bars(races), title, f"{args.machine}, {args.threads} threads"))


if __name__ == "__main__":
    main()
