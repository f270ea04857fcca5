"""The budget of one rendering of a template, and the weight of values.

Laws: a template can spend only so many units, where steps, characters and items cost in
proportion to their time; no value weighs more than `HEAVIEST`; containers are weighed as if every
reference in them were a copy, so that a list of a list of a list, each twice, is seen for what
printing or comparing it would cost.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any

from jinja2.runtime import Undefined

from lanewise.errors import TextError

BUDGET = 120_000_000  # units of one rendering: 600,000 steps, or 30 million characters
STEP = 200  # units of a step: an iteration, a call, an operation
CHARACTER = 4  # units of a character that is made
ITEM = 10  # units of an item of a container that is looked at
HEAVIEST = 1 << 22  # characters of one value; an item of a container weighs 16
DEEPEST = 64  # containers inside containers
SECONDS = 2.0  # of this thread's own time, should the units be wrong
_LOOK = 1_000_000  # units between two looks at the clock


class Meter:
    """What is left to spend; `spend` raises when it is nothing."""

    def __init__(self) -> None:
        self.left = BUDGET
        self._look = self.left - _LOOK
        self._deadline = time.thread_time() + SECONDS

    def spend(self, units: int) -> None:
        """Take ``units``; raises `TextError` ``text.template_limit`` when there are none left."""
        self.left -= units
        if self.left < self._look:
            self._look = self.left - _LOOK
            if self.left < 0:
                raise limit("it takes too many steps or makes too much text")
            if time.thread_time() > self._deadline:
                raise limit(f"it takes more than {SECONDS:g} seconds")


METER: ContextVar[Meter] = ContextVar("lanewise-template-meter")


def limit(message: str) -> TextError:
    """The error for a template that asks for too much."""
    return TextError(
        "text.template_limit",
        f"the chat template was stopped: {message}",
        place="chat template",
        remedy="give the prompt as plain text, or use another template",
    )


def spend(units: int = STEP) -> None:
    """Spend of the rendering that runs."""
    METER.get().spend(units)


def fits(size: int) -> int:
    """``size`` if a value may be so large; raises before it is made."""
    if size > HEAVIEST:
        raise limit(f"a value would weigh {size}, more than {HEAVIEST}")
    return size


def weigh(*values: Any) -> int:
    """Characters in values and in what they hold, and 16 for each item of a container.

    Raises `TextError` ``text.template_limit``: heavier than `HEAVIEST`, deeper than `DEEPEST`, or
    a container holds what is not plain data (and would print without bounds).
    """
    total = visited = 0
    todo: list[tuple[Any, int]] = [(value, 0) for value in values]
    while todo:
        item, depth = todo.pop()
        visited += 1
        total += 16 if depth else 0
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, int):
            total += item.bit_length() >> 2
        elif isinstance(item, (list, tuple, dict)):
            if depth == DEEPEST:
                raise limit(f"a value is nested more than {DEEPEST} deep")
            fits(total + 16 * (len(todo) + len(item)))
            parts = (*item, *item.values()) if isinstance(item, dict) else item
            todo.extend((part, depth + 1) for part in parts)
        elif depth and not isinstance(item, (float, Undefined, type(None))):
            raise limit(f"a {type(item).__name__} is inside a list or a dict")
        fits(total)
    spend(ITEM * visited)
    return total


class Each:
    """An iterable whose every item is a step; its length and truth are the iterable's own."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        meter = METER.get()
        for item in self._items:
            meter.spend(STEP)
            yield item

    def __bool__(self) -> bool:
        return bool(self._items)

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]
