"""Engines that can be raced: how each is started, and what its output says.

Laws: every engine gets the same file, threads, prompt and depth, and an f16 cache; an engine that
has settings is raced in all of them, and the best for a test counts.  Tests are named ppP (a
prompt of P tokens on an empty cache) and tgN@P (N tokens written after P).
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OURS = [sys.executable, "-m", "lanewise"]
LIMIT_S = 1800  # of one command


@dataclass(frozen=True)
class Work:
    """`prompt` tokens read, then `generate` tokens written; medians of `repeat` runs."""

    prompt: int
    generate: int
    threads: int
    repeat: int

    @property
    def tests(self) -> tuple[str, str]:
        return f"pp{self.prompt}", f"tg{self.generate}@{self.prompt}"


@dataclass
class Told:
    """What one run said: tokens a second by test, the engine's version, and more of ours."""

    rates: dict[str, float]
    version: str = ""
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Engine:
    """A setting of an engine: `family` races as one; `run(path, work)` gives what it said."""

    family: str
    setting: str
    run: Callable[[str, Work], Told]

    @property
    def name(self) -> str:
        return f"{self.family} ({self.setting})" if self.setting else self.family


class Failed(RuntimeError):
    """A command that ended badly or said nothing that can be read."""


def output(command: Sequence[str], env: dict[str, str] | None = None) -> str:
    """A command's stdout; Failed with the end of its stderr if it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=env, timeout=LIMIT_S, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"{command[0]}: {error}") from error
    if done.returncode:
        raise Failed(f"{' '.join(command)}: status {done.returncode}\n{done.stderr[-800:].strip()}")
    return done.stdout


def last_json(text: str) -> dict[str, Any]:
    """The JSON object of the last line."""
    try:
        found = json.loads(text.strip().splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise Failed(f"no JSON in the last line of {text[-200:]!r}") from error
    if not isinstance(found, dict):
        raise Failed(f"no JSON object in {text[-200:]!r}")
    return found


# -- ours -----------------------------------------------------------------------------------------


def ours(activations: str) -> Engine:
    """Lanewise with one recipe of activations."""

    def run(path: str, work: Work) -> Told:
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        base = [*OURS, "bench", path, "--json", "-r", str(work.repeat), "-t", str(work.threads)]
        base += ["--activations", activations, "--kv", "f16"]
        read = last_json(output([*base, "-p", str(work.prompt), "-n", "0"], env))
        write = ["-p", "0", "-n", str(work.generate), "-d", str(work.prompt)]
        wrote = last_json(output([*base, *write], env))
        pp, tg = work.tests
        more = {
            "peak": max(read["peak_bytes"], wrote["peak_bytes"]),
            "of_limit": {pp: read["pp_of_limit"], tg: wrote["tg_of_limit"]},
            "limits": {pp: read["limits"], tg: wrote["limits"]},
        }
        return Told({pp: read["pp"], tg: wrote["tg"]}, "", more)

    return Engine("ours", activations, run)


# -- llama.cpp, through a Python script -----------------------------------------------------------


def script(python: str, path: str, flash: bool) -> Engine:
    """`PYTHON SCRIPT speed MODEL --prompt P --generate N --threads T --repeat R [--flash-attn]`;
    its last line is JSON with ppP, tgN@P and "engine"."""

    def run(model: str, work: Work) -> Told:
        command = [python, path, "speed", model, "--prompt", str(work.prompt)]
        command += ["--generate", str(work.generate), "--threads", str(work.threads)]
        command += ["--repeat", str(work.repeat), *(["--flash-attn"] if flash else [])]
        return parse_script(output(command), work)

    return Engine("llama.cpp", f"fa {int(flash)}", run)


def parse_script(text: str, work: Work) -> Told:
    found = last_json(text)
    missing = [t for t in work.tests if not isinstance(found.get(t), int | float)]
    if missing:
        raise Failed(f"no {', '.join(missing)} in {text[-200:]!r}")
    return Told({t: float(found[t]) for t in work.tests}, str(found.get("engine", "")))


# -- ik_llama.cpp, by its own bench ---------------------------------------------------------------


def llama_bench(binary: str, flash: bool) -> Engine:
    """`llama-bench` of ik_llama.cpp, weights repacked as they are loaded."""

    def run(model: str, work: Work) -> Told:
        command = [binary, "-m", model, "-t", str(work.threads), "-p", str(work.prompt), "-n", "0"]
        command += ["-gp", f"{work.prompt},{work.generate}", "-fa", str(int(flash)), "-rtr", "1"]
        command += ["-ctk", "f16", "-ctv", "f16", "-r", str(work.repeat), "-o", "json"]
        return parse_llama_bench(output(command), work)

    return Engine("ik_llama.cpp", f"fa {int(flash)}", run)


def parse_llama_bench(text: str, work: Work) -> Told:
    """Objects of its JSON, told apart by their labels; read piece by piece, since it leaves some
    numbers empty."""
    pp, tg = work.tests
    labels = {f"pp{work.prompt}": pp, f"tg{work.generate}@pp{work.prompt}": tg, tg: tg}
    rates: dict[str, float] = {}
    for piece in re.findall(r"\{[^{}]*\}", text):
        label = re.search(r'"test":\s*"([^"]*)"', piece)
        samples = re.search(r'"samples_ts":\s*\[([^\]]*)\]', piece)
        if label and samples and label.group(1) in labels:
            values = [float(v) for v in samples.group(1).split(",") if v.strip()]
            if values:
                rates[labels[label.group(1)]] = statistics.median(values)
    missing = [t for t in work.tests if t not in rates]
    if missing:
        raise Failed(f"no {', '.join(missing)} in {text[-200:]!r}")
    commit = re.search(r'"build_commit":\s*"([^"]*)"', text)
    return Told(rates, f"ik_llama.cpp {commit.group(1)}" if commit else "")
