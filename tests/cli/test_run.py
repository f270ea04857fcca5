"""run: prompts from everywhere, streaming, JSON, the options' way to the lane."""

from __future__ import annotations

import json

import pytest

from lanewise.cli import common
from tests.cli import fake

PARIS = "The capital of France is Paris."


def test_answers_on_stdout_and_is_quiet_in_a_pipe(call):
    result = call("run", "fake", "What is the capital of France?")
    assert (result.exit_code, result.stdout, result.stderr) == (0, PARIS + "\n", "")
    assert fake.FakeLane.last.closed


def test_options_reach_the_lane(call):
    call(
        "run", "fake", "hi", "-n", "3", "--temp", "0", "--top-k", "7", "--top-p", "0.5",
        "--min-p", "0.1", "--seed", "9", "-c", "64", "-t", "3", "--activations", "int8",
        "--kv", "f32", "--hold", "a,b", "--offline", "--speculate", "3",
    )  # fmt: skip
    lane = fake.FakeLane.last
    assert lane.options == {
        "context": 64, "threads": 3, "activations": "int8", "kv": "f32", "hold": ("a", "b"),
        "offline": True,
    }  # fmt: skip
    assert lane.calls[0][1] == {
        "max_tokens": 3, "temperature": 0.0, "top_k": 7, "top_p": 0.5, "min_p": 0.1, "seed": 9,
        "speculate": "3",
    }  # fmt: skip


def test_many_threads_for_each_cpu_are_told_of(monkeypatch, capsys):
    monkeypatch.setattr("lanewise.runtime.cpus.available_cpus", lambda: 2)
    common._tell_of_threads(8)
    assert capsys.readouterr().err == ""
    common._tell_of_threads(9)
    assert "9 threads on 2 CPUs" in capsys.readouterr().err
    monkeypatch.setenv("LANEWISE_THREADS", "100")
    common._tell_of_threads(None)
    assert "-t 2 is what runs at once" in capsys.readouterr().err


def test_defaults_and_environment(call, monkeypatch):
    call("run", "fake", "hi")
    assert fake.FakeLane.last.options == {
        "context": None, "threads": None, "activations": "int8x2", "kv": "f16", "hold": None,
        "offline": None,
    }  # fmt: skip
    monkeypatch.setenv("LANEWISE_ACTIVATIONS", "f32")
    call("run", "fake", "hi")
    assert fake.FakeLane.last.options["activations"] == "f32"
    call("run", "fake", "hi", "--activations", "int8")
    assert fake.FakeLane.last.options["activations"] == "int8"


def test_messages_system_and_raw(call):
    def asked(*args, stdin=None):
        return json.loads(call("run", "echo", *args, stdin=stdin).stdout)

    assert asked("hi") == [{"role": "user", "content": "hi"}]
    assert asked("hi", "--system", "be brief") == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
    ]
    assert asked("hi", "--system", "") == [
        {"role": "system", "content": ""},
        {"role": "user", "content": "hi"},
    ]
    assert asked(" Once upon a time", "--raw") == " Once upon a time"
    result = call("run", "fake", "hi", "--raw", "--system", "x")
    assert result.exit_code == 2 and "--system" in result.stderr


def test_the_prompt_from_stdin(call, monkeypatch):
    assert json.loads(call("run", "echo", stdin="zwei\nZeilen ß\n\n").stdout) == [
        {"role": "user", "content": "zwei\nZeilen ß\n"}
    ]
    assert json.loads(call("run", "echo", "-", "--raw", stdin="x\r\n").stdout) == "x"
    bad = call("run", "echo", stdin=b"ab\xff")
    assert bad.exit_code == 2 and "UTF-8 (byte 2)" in bad.stderr
    monkeypatch.setattr(common, "LONGEST_PROMPT", 2 << 20)
    assert call("run", "echo", stdin="a" * (2 << 20)).exit_code == 0
    endless = call("run", "echo", stdin="a" * (2 << 20) + "b")
    assert endless.exit_code == 2 and endless.stdout == ""
    assert endless.stderr.startswith("error[usage.prompt]: stdin: the prompt has more than 2 MiB")
    assert "remedy: give a shorter one" in endless.stderr
    given = call("run", "echo", "given", stdin="not read")
    assert json.loads(given.stdout)[0]["content"] == "given"


@pytest.mark.parametrize("args", [[""], ["  \n"], ["", "--raw"], []])
def test_an_empty_prompt_is_refused(call, args):
    result = call("run", "fake", *args, stdin="")
    assert result.exit_code == 2
    assert result.stderr.startswith("error[usage.prompt]: the prompt is empty\n  remedy: ")
    assert fake.FakeLane.last is None, "refused before anything is loaded"


def test_json(call):
    result = call("run", "fake", "hi", "--json", "-n", "3")
    record = json.loads(result.stdout)
    assert result.stdout.count("\n") == 1
    assert record["text"] == "The capital of" and record["ids"] == [0, 1, 2]
    assert record["finish_reason"] == "stop"
    assert record["prompt_tokens"] == 10 and record["prompt_tokens_per_s"] == 20.0
    assert record["tokens"] == 3 and record["tokens_per_s"] == pytest.approx(2 / 0.02)
    assert record["peak_bytes"] > 1 << 20


def test_stages_are_told_when_asked(call):
    lines = call("run", "fake", "hi", "-v").stderr.splitlines()
    names = [line.split()[0] for line in lines]
    assert names == ["download", "resolve", "compile", "load", "prompt"]
    assert "100.0 MB" in lines[0] and "3/3" in lines[2]
    assert lines[-1].startswith(
        "prompt 10 tok, 20.0 tok/s | first token 0.25 s | 7 tok, 100.0 tok/s"
    )
    assert "GB" in lines[-1] or "MB" in lines[-1]
    assert call("run", "fake", "hi", "-q").stderr == ""


def test_a_full_context_is_said(call):
    result = call("run", "full", "hi", "-v")
    assert result.exit_code == 0 and result.stdout == "so far\n"
    assert "the context is full" in result.stderr


def test_any_text_can_be_written(call):
    result = call("run", "rude", "hi")
    assert result.exit_code == 0
    assert result.stdout_bytes == b"a\x1b[2J\xc2\x9b31m?b\n"
    assert call("run", "rude", "hi", "--json").exit_code == 0
