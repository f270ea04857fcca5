"""The real thing: the demo model, from the shell, as a user would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lanewise.ir.text import parse_graph
from tests.cli.conftest import ROOT

pytestmark = pytest.mark.model
QUESTION = "What is the capital of France?"
Shell = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> str:
    return str(smollm2_path)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A cache that these tests share, so that the model is compiled once."""
    cache = tmp_path_factory.mktemp("cache")
    kept = {k: v for k, v in os.environ.items() if not k.startswith("LANEWISE_")}
    return {**kept, "LANEWISE_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT / "src")}


@pytest.fixture(scope="module")
def shell(environment: dict[str, str]) -> Shell:
    def run(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "lanewise", *args],
            env=environment, input=stdin, capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    return run


def test_the_capital_of_france(shell, model):
    done = shell("run", model, QUESTION, "--temp", "0")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "The capital of France is Paris.\n"


def test_the_second_start_compiles_nothing(shell, model):
    shell("run", model, "hi", "-n", "1")
    done = shell("run", model, QUESTION, "--temp", "0", "-v")
    assert "compiled: cached" in done.stderr and "pack" not in done.stderr


def test_a_seed_makes_it_repeatable(shell, model):
    args = ("run", model, "Tell me a story.", "--json", "-n", "12", "--temp", "1.5")
    one, two, other = (
        json.loads(shell(*args, "--seed", seed, "-t", threads).stdout)
        for seed, threads in (("7", "1"), ("7", "2"), ("8", "2"))
    )
    assert one["ids"] == two["ids"] != other["ids"]
    assert len(one["ids"]) == one["tokens"] <= 12


def test_a_prompt_from_a_pipe_goes_on(shell, model):
    done = shell(
        "run", model, "--raw", "--temp", "0", "-n", "2", stdin="The capital of France is\n"
    )
    assert done.stdout.startswith(" Paris")


def test_a_prompt_that_is_too_long(shell, model):
    done = shell("run", model, QUESTION, "-c", "8")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error[usage.context]: ") and "remedy: " in done.stderr


def test_chat_and_clear(shell, model):
    done = shell("chat", model, "--temp", "0", stdin=f"{QUESTION}\n/clear\n{QUESTION}\n/exit\n")
    assert done.returncode == 0 and done.stderr == "forgotten\n"
    assert done.stdout == "The capital of France is Paris.\n" * 2


def test_bench(shell, model):
    done = shell("bench", model, "-p", "32", "-n", "4", "-d", "16", "-r", "1", "--json", "-t", "1")
    record = json.loads(done.stdout.splitlines()[-1])
    assert record["pp"] > 0 and record["tg"] > 0 and record["threads"] == 1
    assert 0 < record["first_token_s"] < 60 and record["peak_bytes"] > 90e6


def test_perplexity_of_sense_is_below_that_of_noise(shell, model):
    def value(text: str) -> float:
        done = shell("perplexity", model, "-", "-c", "64", "--json", stdin=text)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["perplexity"]

    sense = (
        "The sun rises in the east and sets in the west. Every morning the children walk to "
        "school with their friends, and in the evening they come home and tell their parents "
        "what they have learned. Water boils at one hundred degrees and freezes at zero."
    )
    noise = " ".join(reversed(sense.split()))
    assert 1 < value(sense) < value(noise)


def test_inspect(shell, model):
    record = json.loads(shell("inspect", model, "--json").stdout)
    assert record["runs"] and record["parameters"] == 134_515_008
    assert record["formats"]["q4_1"]["tensors"] == 210
    assert record["spec"]["layers"] == 30 and record["memory"] > record["bytes"]


def test_plan(shell):
    tiny = str(ROOT / "tests" / "golden" / "llama_tied.q8_0.gguf")
    plan = json.loads(shell("plan", tiny, "--json").stdout)
    held = json.loads(shell("plan", tiny, "--json", "--hold", "all").stdout)
    assert len(held["launches"]) > len(plan["launches"]) > 10
    assert held["identity"] != plan["identity"]
    text = shell("plan", tiny, "--program").stdout
    assert plan["identity"] in text and "LwContext" in text
    source = shell("plan", tiny, "--source", "--form", "prefill").stdout
    assert str(parse_graph(source)).strip() == source.strip()


def test_ctrl_c_ends_an_answer(environment, model):
    # Greedy counting goes on to the end of the context.
    prompt = ["1, 2, 3, 4, 5, 6, 7,", "--raw", "--temp", "0"]
    command = [sys.executable, "-m", "lanewise", "run", model, *prompt]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and err == b""
    assert first and (first + out).endswith(b"\n")
    assert time.monotonic() - began < 10


@pytest.mark.network
def test_pull(shell):
    done = shell("pull", "smollm2")
    if done.returncode and "checkpoint.download" in done.stderr:
        pytest.skip(done.stderr)
    path = Path(done.stdout.strip())
    assert path.is_file() and path.name.endswith(".gguf")
    again = shell("pull", "smollm2", "--offline")
    assert again.stdout == done.stdout
