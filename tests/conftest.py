"""What all tests share: the demo model."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lanewise.checkpoint import names
from lanewise.errors import LanewiseError


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
