"""The front door for language models: a checkpoint's step, compiled, and what generates with it."""

from __future__ import annotations

from lanewise.lane.generate import Generation, Timings
from lanewise.lane.lane import Lane
from lanewise.lane.make import compile, inspect

__all__ = ["Generation", "Lane", "Timings", "compile", "inspect"]
