"""What all tests share: the demo model, and signals that do what they say."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import hypothesis
import pytest

from lanewise.checkpoint import names
from lanewise.errors import LanewiseError

hypothesis.settings.register_profile("repeatable", derandomize=True)


def pytest_configure() -> None:
    """The same examples in every run, so that a change alone makes a test fail; new ones with
    LANEWISE_TEST_RANDOM set.  And whoever runs the tests may ignore signals (nohup and shells'
    background jobs do), which the processes that tests start would inherit."""
    if "LANEWISE_TEST_RANDOM" not in os.environ:
        hypothesis.settings.load_profile("repeatable")
    usual = {"SIGHUP": signal.SIG_DFL, "SIGTERM": signal.SIG_DFL}
    for name, handler in {**usual, "SIGINT": signal.default_int_handler}.items():
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The demo model: LANEWISE_TEST_MODEL, else by our own pull (cache, then download).

    Skips only where it cannot be had without a network; wrong bytes fail.
    """
    given = os.environ.get("LANEWISE_TEST_MODEL")
    if given:
        return Path(given)
    try:
        return names.resolve("smollm2")
    except LanewiseError as error:
        if error.code in {"checkpoint.offline", "checkpoint.download"}:
            pytest.skip(str(error))
        raise
