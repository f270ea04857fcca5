"""The command line.  One module per command; `app` finds them, so that a start loads only one."""

from __future__ import annotations

from lanewise.cli.app import app, main

__all__ = ["app", "main"]
