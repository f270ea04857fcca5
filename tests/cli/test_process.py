"""As a process: streaming, Ctrl-C, a reader that leaves, speed of the start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.cli.conftest import ROOT


def test_text_comes_as_it_is_written_and_ctrl_c_ends_it(start):
    with start("run", "slow", "hi") as process:
        first = os.read(process.stdout.fileno(), 5)
        assert first == b"tick "
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert out.endswith(b"\n") and err == b""


def test_ctrl_c_with_json_keeps_what_was_written(start):
    with start("run", "slow", "hi", "--json", "-v", stderr=subprocess.PIPE) as process:
        while b"load" not in process.stderr.readline():
            pass
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    record = json.loads(out)
    assert record["finish_reason"] == "interrupted" and record["text"].startswith("tick ")


def test_a_reader_that_leaves_ends_the_run_quietly(start):
    with start("run", "flood", "hi") as process:
        process.stdout.read(10)
        process.stdout.close()
        err = process.stderr.read()
        process.wait(timeout=20)
    assert process.returncode == 1 and err == b""


def test_stdout_that_takes_nothing_at_the_end(start):
    with open("/dev/full", "wb") as full, start("run", "fake", "hi", stdout=full) as process:
        err = process.stderr.read()
    assert process.returncode == 1 and err.startswith(b"error[system]: No space left")
    assert b"where the output goes" in err


@pytest.mark.parametrize("closed", [0, 2])
def test_a_closed_stream_leads_nowhere(start, closed):
    with start("run", "fake", "hi", preexec_fn=lambda: os.close(closed)) as process:
        out, err = process.communicate(timeout=20)
    assert process.returncode == 0 and err == b""
    assert out == b"The capital of France is Paris.\n"


COMMANDS = [["run", "fake", "hi"], ["run", "fake", "hi", "--json"], ["bench", "fake", "-r", "1"],
            ["chat", "fake"], ["plan", "fake"], ["list"], ["--help"], ["--version"]]  # fmt: skip


@pytest.mark.parametrize("args", COMMANDS, ids=" ".join)
def test_a_closed_stdout_is_not_lost_silently(start, args):
    with start(*args, preexec_fn=lambda: os.close(1)) as process:
        out, err = process.communicate(b"hi\n", timeout=20)
    assert process.returncode == 1 and out == b""
    assert err.startswith(b"error[system]: stdout: the output is closed")
    assert err.count(b"\n") == 2 and b"remedy: let the output go somewhere" in err


def test_no_prompt_and_no_stdin(start):
    with start("run", "fake", preexec_fn=lambda: os.close(0)) as process:
        _, err = process.communicate(timeout=20)
    assert process.returncode == 2 and err.startswith(b"error[usage.prompt]")


def test_a_narrow_encoding_still_gets_an_answer(start, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    with start("run", "echo", "naïve") as process:
        out, err = process.communicate(timeout=20)
    assert process.returncode == 0 and b"na?ve" in out and err == b""


def test_chat_over_a_pipe_ends_at_ctrl_c(start):
    """Nobody is there to go on; the lines that wait are not answered."""
    with start("chat", "slow") as process:
        process.stdin.write(b"hi\nagain\n")
        process.stdin.flush()
        assert os.read(process.stdout.fileno(), 5) == b"tick "
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 130 and out.endswith(b"\n") and err == b""
    assert out.count(b"\n") == 1


def test_arguments_that_are_not_utf8(start):
    for args in (["run", "echo", b"\xff\xfe bad"], ["run", "echo", "hi", "--system", b"\xff"]):
        with start(*args, stderr=subprocess.PIPE) as process:
            out, err = process.communicate(timeout=20)
        assert process.returncode == 2 and out == b""
        assert b"usage.encoding" in err and b"iconv" in err


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["run", "--help"]])
def test_a_start_is_light(args):
    """By modules, not by time: what a start may not load (each costs it tens of milliseconds)."""
    code = (
        "import sys\nfrom lanewise.cli import main\n"
        "try:\n    main()\nexcept SystemExit as e:\n    assert not e.code, e.code\n"
        "heavy = {'numpy', 'rich', 'prompt_toolkit', 'tokenizers', 'jinja2', 'asyncio'}\n"
        "print('heavy:', sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code, *args], env=env, capture_output=True, text=True, check=True
    )
    assert done.stderr == "heavy: []\n"
    assert done.stdout
