"""The command line.  One module per command; `app` finds them, so that a start loads only one."""

from __future__ import annotations

try:
    from lanewise.cli.app import app, main
except KeyboardInterrupt:  # Ctrl-C as soon as this
    raise SystemExit(130) from None

__all__ = ["app", "main"]
