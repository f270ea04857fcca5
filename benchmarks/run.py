"""Ours beside a peer, in turns, on this machine; ratios to benchmarks/RESULTS.md.

    python benchmarks/run.py smollm2 other.gguf \\
        --peer-python peer/bin/python --peer-script llama_cpp_peer.py

Each round runs the peer, then us, then us, then the peer, so that drift (heat, neighbours) falls on
both alike; a ratio is ours / peer's within a round, and the median of the rounds is told.  Prompt
speed is measured on an empty cache, generation at the prompt's depth, as the peer does.

The peer's command is `PYTHON SCRIPT speed MODEL --prompt P --generate N --threads T --repeat R`;
its last line of output is JSON with `pp<P>` and `tg<N>@<P>` in tokens per second.  Without a peer
ours is measured alone.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "RESULTS.md"


@dataclass
class Case:
    """A model's runs: tokens per second, one of each per run, and ratios, one per round."""

    model: str
    ours: dict[str, list[float]] = field(default_factory=lambda: {"pp": [], "tg": []})
    peer: dict[str, list[float]] = field(default_factory=lambda: {"pp": [], "tg": []})
    ratios: dict[str, list[float]] = field(default_factory=lambda: {"pp": [], "tg": []})
    peak: int = 0
    first_s: float = 0.0


def last_json(command: list[str], env: dict[str, str] | None = None) -> dict[str, Any]:
    """Run a command; the JSON object of its last line."""
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr.strip()}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def ours(args: argparse.Namespace, case: Case) -> dict[str, float]:
    """Prompt and generation rates of one run of each test."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    base = [sys.executable, "-m", "lanewise", "bench", case.model, "--json", "-r", str(args.repeat)]
    base += ["-t", str(args.threads), "--activations", args.activations]
    prompt = last_json([*base, "-p", str(args.prompt), "-n", "0"], env)
    write = last_json([*base, "-p", "0", "-n", str(args.generate), "-d", str(args.prompt)], env)
    case.peak = max(case.peak, prompt["peak_bytes"], write["peak_bytes"])
    case.first_s = prompt["first_token_s"]
    return {"pp": prompt["pp"], "tg": write["tg"]}


def peer(args: argparse.Namespace, path: str) -> dict[str, float]:
    command = [args.peer_python, args.peer_script, "speed", path, "--prompt", str(args.prompt)]
    command += ["--generate", str(args.generate), "--threads", str(args.threads)]
    told = last_json([*command, "--repeat", str(args.repeat)])
    args.engine = told.get("engine", "peer")
    return {"pp": told[f"pp{args.prompt}"], "tg": told[f"tg{args.generate}@{args.prompt}"]}


def path_of(model: str) -> str:
    """A peer knows no names: the file that a name means."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    if Path(model).is_file():
        return model
    return last_json([sys.executable, "-m", "lanewise", "pull", model, "--json"], env)["path"]


def measure(args: argparse.Namespace, model: str) -> Case:
    case = Case(model)
    path = path_of(model)
    for turn in range(args.rounds):
        theirs = [peer(args, path)] if args.peer_script else []
        mine = [ours(args, case)]
        if args.peer_script:
            mine.append(ours(args, case))
            theirs.append(peer(args, path))
        for key in ("pp", "tg"):
            case.ours[key] += [run[key] for run in mine]
            case.peer[key] += [run[key] for run in theirs]
            if theirs:
                us, them = (sum(run[key] for run in runs) for runs in (mine, theirs))
                case.ratios[key].append(us / them)
        print(f"{model}: round {turn + 1}/{args.rounds}", file=sys.stderr, flush=True)
    return case


def machine() -> str:
    """The CPU's name, cores that we may use, and the system."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {count} cores, {platform.system()} {platform.machine()}"


def commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
        return done.stdout.strip()

    dirty = " with changes" if git("status", "--porcelain", "--", "src") else ""
    return (git("rev-parse", "--short", "HEAD") or "unknown") + dirty


def report(args: argparse.Namespace, cases: list[Case]) -> str:
    """A section of RESULTS.md."""
    names = {"pp": f"pp{args.prompt}", "tg": f"tg{args.generate} @ d{args.prompt}"}
    lines = [
        f"## {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC, commit {commit()}",
        "",
        f"- machine: {machine()}; {args.threads} threads; activations {args.activations}",
        f"- peer: {getattr(args, 'engine', 'none')}; {args.rounds} rounds, runs of {args.repeat}",
        f"- command: `python benchmarks/run.py {' '.join(shown(a) for a in sys.argv[1:])}`",
        "",
        "| model | test | ours tok/s | peer tok/s | ours / peer | rounds | peak |",
        "|---|---|---:|---:|---:|---|---:|",
    ]
    for case in cases:
        for key, name in names.items():
            us, them, ratios = case.ours[key], case.peer[key], case.ratios[key]
            cells = [
                Path(case.model).name,
                name,
                f"{statistics.median(us):.1f}",
                f"{statistics.median(them):.1f}" if them else "",
                f"**{statistics.median(ratios):.2f}**" if ratios else "",
                " ".join(f"{r:.2f}" for r in ratios),
                f"{case.peak / 1e9:.2f} GB",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def shown(word: str) -> str:
    """A path by its last part: where things lie on one machine helps nobody on another."""
    return Path(word).name if "/" in word else word


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("models", nargs="+", help=".gguf files or names")
    p.add_argument("--peer-python", default=sys.executable)
    p.add_argument("--peer-script")
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--generate", type=int, default=64)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--activations", default="int8x2", choices=("int8x2", "int8", "f32"))
    p.add_argument("--dry", action="store_true", help="print only, leave RESULTS.md alone")
    args = p.parse_args()
    text = report(args, [measure(args, model) for model in args.models])
    print(text)
    if not args.dry:
        old = RESULTS.read_text() if RESULTS.exists() else "# Results\n\nNewest last.\n"
        RESULTS.write_text(f"{old.rstrip()}\n\n{text}")


if __name__ == "__main__":
    main()
