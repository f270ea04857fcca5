"""Every failure is one message with code, place and remedy; never a traceback; the right code."""

from __future__ import annotations

import re
from dataclasses import asdict

import click
import pytest
from click.testing import CliRunner

from lanewise.cli import app, options
from lanewise.lane.sampling import MAX_TOKENS, Sampling, check_count
from tests.cli.conftest import ROOT

BAD = [  # arguments, what the message must hold
    (["run", "fake", "x", "-n", "0"], ["'-n'", "1<=x<="]),
    (["run", "fake", "x", "-n", "two"], ["'-n'", "two"]),
    (["run", "fake", "x", "--temp", "-1"], ["'--temp'", "x=0 or 0.001<=x<=1000"]),
    (["run", "fake", "x", "--temp", "nan"], ["'--temp'", "x=0 or 0.001<=x<=1000"]),
    (["run", "fake", "x", "--temp", "inf"], ["'--temp'", "x=0 or 0.001<=x<=1000"]),
    (["run", "fake", "x", "--temp", "0.0001"], ["'--temp'", "x=0 or 0.001<=x<=1000"]),
    (["run", "fake", "x", "--top-k", "-1"], ["'--top-k'", "0<=x<="]),
    (["run", "fake", "x", "--top-p", "0"], ["'--top-p'", "0<x<=1"]),
    (["run", "fake", "x", "--top-p", "1.5"], ["'--top-p'", "0<x<=1"]),
    (["run", "fake", "x", "--min-p", "nan"], ["'--min-p'", "0<=x<=1"]),
    (["run", "fake", "x", "--seed", "-1"], ["'--seed'", "0<=x<="]),
    (["run", "fake", "x", "-c", "0"], ["'-c'", "1<=x<="]),
    (["run", "fake", "x", "-t", "0"], ["'-t'", "1<=x<=1022"]),
    (["run", "fake", "x", "-t", "9" * 40], ["'-t'", "1<=x<=1022"]),
    (["run", "fake", "x", "--activations", "int4"], ["'--activations'", "int8x2", "f32"]),
    (["run", "fake", "x", "--kv", "q8"], ["'--kv'", "f16"]),
    (["run", "fake", "x", "--hold", "a,,b"], ["'--hold'", "names"]),
    (["run"], ["MODEL"]),
    (["run", "fake", "x", "y"], ["y"]),
    (["run", "fake", "x", "--frobnicate"], ["--frobnicate"]),
    (["runn"], ["runn"]),
    (["bench", "fake", "-p", "-1"], ["'-p'", "0<=x<="]),
    (["bench", "fake", "-r", "0"], ["'-r'", "1<=x<="]),
    (["bench", "fake", "-p", "0", "-n", "0"], ["nothing to measure"]),
    (["perplexity", "fake", "-", "-c", "1"], ["'-c'", "2<=x<="]),
    (["perplexity", "fake", "-", "-c", "8", "--stride", "9"], ["--stride", "1<=x<=8"]),
    (["plan", "fake", "--form", "nope"], ["--form", "decode, prefill"]),
    (["plan", "fake", "--source", "--program"], ["exclude"]),
    (["cache", "clear", "nope"], ["nope"]),
]


@pytest.mark.parametrize(("args", "words"), BAD, ids=[" ".join(a)[:40] for a, _ in BAD])
def test_usage(call, args, words):
    result = call(*args, stdin="text")
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    for word in words:
        assert word in result.stderr


@pytest.mark.parametrize("name", options.SAMPLING)
def test_what_an_option_takes_the_library_takes(name):
    """So that a refusal names the option, and the help's range is the whole truth."""
    kind = options.SAMPLING[name][1]
    if not isinstance(kind, click.IntRange | click.FloatRange):
        return
    ends = {0, 1e-9, options.MIN_TEMPERATURE, 0.5, 1, kind.min, kind.max}
    taken = 0
    for value in ends:
        try:
            given = kind.convert(repr(value), None, None)
        except click.BadParameter:
            continue
        taken += 1
        if name == "max_tokens":
            check_count(name, given, 1, MAX_TOKENS)
        else:
            Sampling.checked(**{**asdict(Sampling()), name: given})
    assert taken >= 2


def test_a_refusal_has_code_place_and_remedy(call):
    result = call("run", "refuse", "hi")
    assert result.exit_code == 1 and result.stdout == ""
    assert result.stderr == (
        "error[model.architecture]: general.architecture: we do not run 'x'\n  remedy: another\n"
    )


@pytest.mark.parametrize(
    ("model", "code", "word"),
    [
        ("disk", "system", "LANEWISE_CACHE_DIR"),
        ("memory", "memory", "smaller context"),
        ("bug", "internal", "ZeroDivisionError: oops"),
    ],
)
def test_what_the_system_refuses(call, model, code, word):
    result = call("run", model, "hi")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error[{code}]: ") and word in result.stderr
    assert "Traceback" not in result.stderr


def test_debug_shows_the_traceback(call, monkeypatch):
    monkeypatch.setenv("LANEWISE_DEBUG", "1")
    result = call("run", "bug", "hi")
    assert "Traceback" in result.stderr and "error[internal]" in result.stderr


def test_several_errors_are_all_told(call, monkeypatch):
    from lanewise.cli import common
    from lanewise.errors import ModelError, Refused

    def refuse(*_):
        raise Refused([ModelError("a.b", "one", place="t1"), ModelError("c.d", "two", place="t2")])

    monkeypatch.setattr(common, "open_lane", refuse)
    assert call("run", "fake", "hi").stderr == "error[a.b]: t1: one\nerror[c.d]: t2: two\n"


def test_a_message_cannot_drive_the_terminal(call, monkeypatch):
    from lanewise.cli import common
    from lanewise.errors import CheckpointError

    def refuse(*_):
        raise CheckpointError("checkpoint.name", "bad \x1b[2J name", place="a\rb")

    monkeypatch.setattr(common, "open_lane", refuse)
    assert call("run", "fake", "hi").stderr == "error[checkpoint.name]: a\\rb: bad \\x1b[2J name\n"


def test_a_bad_setting_is_named(call, monkeypatch):
    monkeypatch.setenv("LANEWISE_KV", "q3")
    result = call("run", "fake", "hi")
    assert result.exit_code == 2 and "LANEWISE_KV" in result.stderr


def test_ctrl_c_while_loading(call):
    assert call("run", "interrupt", "hi").exit_code == 130


def test_a_missing_file(call, tmp_path):
    result = call("perplexity", "fake", str(tmp_path / "none.txt"))
    assert result.exit_code == 1
    assert "none.txt: No such file" in result.stderr and "remedy" in result.stderr


def test_a_folder_for_a_text(call, tmp_path):
    result = call("perplexity", "fake", str(tmp_path))
    assert result.exit_code == 1
    assert str(tmp_path) in result.stderr and "remedy: give the path of a file" in result.stderr


def test_links_in_a_circle_for_a_text(call, tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    result = call("perplexity", "fake", str(tmp_path / "loop"))
    assert result.exit_code == 1 and "remedy: check the path" in result.stderr


def test_one_limit_of_threads(monkeypatch):
    """What the option, the variable and the library say is what the native pool can count."""
    from lanewise import settings
    from lanewise.errors import LanewiseError
    from lanewise.lane.make import check_knobs
    from lanewise.runtime.pool import check_threads

    source = (ROOT / "src/lanewise/kernels/cpu/runtime.cpp").read_text()
    most = int(re.search(r"threads: 1\.\.(\d+)", source)[1])
    assert f"STOP = {most + 1};" in source
    monkeypatch.setenv("LANEWISE_THREADS", str(most))
    assert check_threads(settings.get("threads")) == most
    assert check_knobs(None, None, None, None, None, None, 1).threads == most

    def knobs():
        check_knobs(None, None, None, None, most + 1, None, 1)

    monkeypatch.setenv("LANEWISE_THREADS", str(most + 1))
    for refused in (lambda: settings.get("threads"), lambda: check_threads(most + 1), knobs):
        with pytest.raises(LanewiseError) as caught:
            refused()
        assert str(most) in str(caught.value)
        monkeypatch.setenv("LANEWISE_THREADS", "1")


WRONG = {  # what is given as MODEL -> code, a word of the message
    "folder": ("checkpoint.folder", "folder"),
    "missing.gguf": ("checkpoint.missing", "no such file"),
    "empty.gguf": ("checkpoint.truncated", "empty"),
    "text.txt": ("checkpoint.magic", "not a GGUF file"),
    "loop.gguf": ("checkpoint.missing", "symbolic links lead in a circle"),
    "dangling": ("checkpoint.missing", "a symbolic link to 'gone.gguf', which is not there"),
}
ASKS = (["run", "", "hi"], ["chat", ""], ["inspect", ""], ["plan", ""], ["bench", ""],
        ["perplexity", "", "-"])  # fmt: skip


@pytest.mark.parametrize("args", ASKS, ids=lambda args: args[0])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_path_for_a_model(tmp_path, args, name):
    """Every command says the same of it: one error with code, place and remedy."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "loop.gguf").symlink_to("loop.gguf")
    (tmp_path / "dangling").symlink_to("gone.gguf")
    (tmp_path / "text.txt").write_text("hello")
    path, (code, word) = str(tmp_path / name), WRONG[name]
    given = [path if arg == "" else arg for arg in args]
    result = CliRunner().invoke(app, given, input="some text", prog_name="lanewise")
    assert result.exit_code == 1 and result.stdout == ""
    first, remedy = result.stderr.splitlines()
    assert first.startswith(f"error[{code}]: {path}: ") and word in first
    assert remedy.startswith("  remedy: ") and len(remedy) > 15
