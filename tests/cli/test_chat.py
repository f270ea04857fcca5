"""chat: the conversation, its commands, and reading lines."""

from __future__ import annotations

import json

import pytest

from lanewise.cli import lines
from lanewise.errors import RunError, UsageError
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
    ("line", "word", "code"),
    [
        ("/set temp -1", "0.001<=x<=", 2), ("/set temp nan", "x=0 or", 2),
        ("/set top-p zero", "zero", 2), ("/set nothing 1", "names: n, temp", 2),
        ("/set temp", "temp   0.8", 0), ("/sett", "/help", 2), ("/set temp 1 2", "names", 2),
        ("/set temp hot", "temp: 'hot' is not a valid number.", 2),
        ("/set n 1.5", "n: '1.5' is not a valid integer.", 2),
        ("/set max-tokens=7", "n      7", 0), ("/help", "/clear", 0), ("/?", "Ctrl-C", 0),
        ("/system", "no system message", 0),
    ],
)  # fmt: skip
def test_a_bad_command_says_so_and_goes_on(call, line, word, code):
    result = call("chat", "fake", stdin=f"{line}\nhi\n")
    assert result.exit_code == code and word in result.stderr
    assert len(fake.FakeLane.last.calls) == 1
    assert fake.FakeLane.last.calls[0][1]["temperature"] == 0.8


@pytest.mark.parametrize("line", ["/exit", "/quit", "/bye"])
def test_leaving(call, line):
    assert call("chat", "fake", stdin=f"{line}\nhi\n").exit_code == 0
    assert fake.FakeLane.last.calls == [] and fake.FakeLane.last.closed


def test_an_error_leaves_the_conversation_as_it_was(call):
    result = call("chat", "fake", "-c", "1", stdin="one\ntwo\n")
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.count("error[usage.context]: the prompt is too long") == 2
    assert "/clear" not in result.stderr  # there is nothing to forget


@pytest.mark.parametrize(
    ("error", "code"), [(UsageError("usage.context", "long", remedy="give -c"), 2),
                        (RunError("run.not_finite", "NaN"), 1)],
)  # fmt: skip
def test_a_refused_turn_is_the_exit_code_and_the_rest_is_answered(call, monkeypatch, error, code):
    """The first refusal's; what could be forgotten is told."""
    plain = fake.FakeLane.chat

    def chat(self, messages, **options):
        said = messages[-1]["content"]
        if said.startswith("no"):
            raise error if said == "no" else RunError("run.other", "another")
        return plain(self, messages, **options)

    monkeypatch.setattr(fake.FakeLane, "chat", chat)
    result = call("chat", "fake", stdin="one\nno\nno more\ntwo\n")
    assert result.exit_code == code
    assert result.stdout == "The capital of France is Paris.\n" * 2
    assert [m["content"] for m in asked() if m["role"] == "user"] == ["one", "two"]
    assert ("remedy: /clear begins anew; else give -c" in result.stderr) == (code == 2)


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


@pytest.mark.parametrize("text", [
    b"a\xffb\n", b'"""\xff\nfirst"""\n', b'"""a\n\xed\xa0\x80"""\n', b"/system \xe9\n", b"\xc3",
])  # fmt: skip
def test_bytes_that_are_no_text_are_refused_as_run_does(call, text):
    """The whole message is, and nothing but it."""
    result = call("chat", "echo", stdin=text + b"\nhi\n" * (text != b"\xc3"))
    assert result.exit_code == 2 and "error[usage.encoding]: message: " in result.stderr
    assert "iconv" in result.stderr and result.stderr.count("error[") == 1
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert answers == ([[{"role": "user", "content": "hi"}]] if text != b"\xc3" else [])


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
        keys.send_bytes(b"a\xffb\r")
        with pytest.raises(UsageError) as caught:
            lines._message(line)
        assert caught.value.code == "usage.encoding"
        keys.send_text("x\x03")
        with pytest.raises(KeyboardInterrupt):
            lines._message(line)
        keys.send_text("\x04")
        with pytest.raises(EOFError):
            lines._message(line)
    assert "hello" in (tmp_path / "chat_history").read_text()
