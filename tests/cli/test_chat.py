"""chat: the conversation, its commands, and reading lines."""

from __future__ import annotations

import json

import pytest

from lanewise.cli import lines
from tests.cli import fake


def asked(index: int = -1):
    return fake.FakeLane.last.calls[index][0]


def test_turns_add_up(call):
    result = call("chat", "fake", "--system", "S", stdin="one\n\ntwo\n")
    assert result.exit_code == 0 and result.stderr == ""
    assert result.stdout == "The capital of France is Paris.\n" * 2
    assert asked() == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "The capital of France is Paris."},
        {"role": "user", "content": "two"},
    ]


def test_clear_and_system_begin_anew(call):
    result = call("chat", "fake", stdin="one\n/clear\ntwo\n/system be brief\n/system\nthree\n")
    assert [len(messages) for messages, _ in fake.FakeLane.last.calls] == [1, 1, 2]
    assert asked()[0] == {"role": "system", "content": "be brief"}
    assert result.stderr.splitlines() == ["forgotten", "system: be brief", "system: be brief"]


def test_set(call):
    text = "/set temp 0\n/set top-k 5\n/set n 2\n/set seed 3\nhi\n/set n off\n/set\n"
    text += "/set speculate 2\nagain\n"
    result = call("chat", "fake", "--min-p", "0.2", stdin=text)
    first, second = (options for _, options in fake.FakeLane.last.calls)
    assert first == {
        "temperature": 0.0, "top_k": 5, "top_p": 0.95, "min_p": 0.2, "seed": 3, "max_tokens": 2,
        "speculate": None,
    }  # fmt: skip
    assert second["max_tokens"] is None and second["speculate"] == "2"
    assert "speculate auto" in result.stderr
    assert "n      off" in result.stderr and "top-k  5" in result.stderr


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("/set temp -1", "0<=x<="), ("/set temp nan", "0<=x<="), ("/set top-p zero", "zero"),
        ("/set nothing 1", "names: n, temp"), ("/set temp", "temp   0.8"), ("/sett", "/help"),
        ("/set temp 1 2", "names"), ("/set temp hot", "temp: 'hot' is not a valid number."),
        ("/set n 1.5", "n: '1.5' is not a valid integer."), ("/set max-tokens=7", "n      7"),
        ("/help", "/clear"), ("/?", "Ctrl-C"), ("/system", "no system message"),
    ],
)  # fmt: skip
def test_a_bad_command_says_so_and_goes_on(call, line, word):
    result = call("chat", "fake", stdin=f"{line}\nhi\n")
    assert result.exit_code == 0 and word in result.stderr
    assert len(fake.FakeLane.last.calls) == 1
    assert fake.FakeLane.last.calls[0][1]["temperature"] == 0.8


@pytest.mark.parametrize("line", ["/exit", "/quit", "/bye"])
def test_leaving(call, line):
    assert call("chat", "fake", stdin=f"{line}\nhi\n").exit_code == 0
    assert fake.FakeLane.last.calls == [] and fake.FakeLane.last.closed


def test_an_error_leaves_the_conversation_as_it_was(call):
    result = call("chat", "fake", "-c", "1", stdin="one\ntwo\n")
    assert result.exit_code == 0 and result.stdout == ""
    assert result.stderr.count("error[usage.context]: the prompt is too long") == 2


def test_a_full_context_is_said(call):
    assert "/clear" in call("chat", "full", stdin="hi\n").stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"""a\nb"""\n', "a\nb"), ('"""\na\n\n b\n"""\n', "a\n\n b"), ('"""one"""\n', "one"),
        ('"""cut\nshort', "cut\nshort"), ('say """x"""\n', 'say """x"""'), ("\tx \r\n", "\tx "),
        ('"""/clear\nis a command"""\n', "/clear\nis a command"),
    ],
)  # fmt: skip
def test_messages_of_several_lines(call, text, message):
    result = call("chat", "echo", stdin=text)
    assert json.loads(result.stdout) == [{"role": "user", "content": message}]


def test_bytes_that_are_no_text_are_still_a_message(call):
    result = call("chat", "echo", stdin=b"a\xffb\n")
    assert json.loads(result.stdout)[0]["content"] == "a�b"


def test_history_is_kept_and_a_read_only_home_is_no_error(monkeypatch, tmp_path):
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    monkeypatch.setenv("LANEWISE_CACHE_DIR", str(tmp_path))
    assert isinstance(lines._history(), FileHistory)
    assert (tmp_path / "chat_history").stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("LANEWISE_CACHE_DIR", "/proc/none")
    assert isinstance(lines._history(), InMemoryHistory)


def test_the_editor(monkeypatch, tmp_path):
    """Typed keys, through prompt_toolkit itself: editing, then Ctrl-C, then Ctrl-D."""
    from prompt_toolkit.application import create_app_session
    from prompt_toolkit.input import create_pipe_input
    from prompt_toolkit.output import DummyOutput

    monkeypatch.setenv("LANEWISE_CACHE_DIR", str(tmp_path))
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        line = lines._editor()
        keys.send_text("helo\x1b[Dl\r")  # left arrow, then the missing letter
        assert lines._message(line) == "hello"
        keys.send_text('"""a\rb"""\r')
        assert lines._message(line) == "a\nb"
        keys.send_text("x\x03")
        with pytest.raises(KeyboardInterrupt):
            lines._message(line)
        keys.send_text("\x04")
        with pytest.raises(EOFError):
            lines._message(line)
    assert "hello" in (tmp_path / "chat_history").read_text()
