"""Finding what repeats, for text that says it once (`plan.repeats`)."""

from __future__ import annotations

from lanewise.plan.repeats import Run, repeats

__all__ = ["Run", "repeats"]
