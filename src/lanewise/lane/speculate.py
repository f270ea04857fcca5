"""Speculation by prompt lookup: guess the next tokens from what the text repeats, check in one run.

Laws: no token ever depends on it.  A draft is checked by a form whose rows are the steps that
plain decoding would make (law 2: the same bits), each with the draw of its own step, and only what
plain decoding would have given is kept.  It runs only when it pays: how often lookups are right is
counted whether they are run or not, what checking costs is measured as it runs, and both forget.

A draft of m tokens pays when (1 + E[accepted]) / c(1 + m) is above 1, where c(M) = T(M) / T(1) and
a lookup that matches n tokens is right with a chance p(n); if it is right the next matches n + 1,
so E = p(n) + p(n) p(n+1) + ...
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from lanewise.lane.sampling import option_error

VERIFY: Final = "verify"
ROWS: Final = 8  # of the form that checks a draft: the last token and up to 7 guesses
MARGIN: Final = 1.1  # a gain below this is noise

_LONG: Final = 16  # a match is not followed further back than this
_FROM: Final = (2, 3, 4, 8)  # classes of match lengths begin here
_PRIOR: Final = (0.15, 0.3, 0.45, 0.65)  # chances of each class before anything was seen ...
_WEIGHT: Final = 4.0  # ... which count as so many trials
_KEEP: Final = 0.96  # of old trials, at each new one
_ALPHA: Final = 0.25  # of a new time
_SLOPE: Final = 0.35  # cost of one more row before it was measured
_WILD: Final = 3.0  # a time further out than this, or its inverse, is an interruption
_PAUSE: Final = (64, 512)  # plain steps before costs are measured again: first, most


@dataclass(frozen=True, slots=True)
class Drafting:
    """How many tokens to guess at most (0: none); `forced`: whenever there is a match."""

    most: int = 0
    forced: bool = False

    @staticmethod
    def checked(value: object) -> Drafting:
        """Of "auto", "off" or a number of guesses 0 to 7; UsageError "usage.option"."""
        if value == "auto":
            return Drafting(ROWS - 1)  # fewer where more would cost too much
        if value == "off":
            return Drafting()
        number = int(value) if isinstance(value, str) and value.isdecimal() else value
        if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < ROWS:
            return Drafting(number, forced=True)
        raise option_error("speculate", value, f'"auto", "off" or 0 to {ROWS - 1} tokens')


NO_DRAFTS: Final = Drafting()


class Pace:
    """What a step of M rows costs, in steps of one row: moving averages of a lane's own times."""

    def __init__(self) -> None:
        self.step_s = 0.0  # seconds of a plain step; 0 before the first
        self._cost: dict[int, float] = {}
        self._waited, self._pause = 0, _PAUSE[0]

    def took(self, rows: int, seconds: float) -> None:
        """Count one run of the form that decodes (1 row) or checks (more)."""
        if seconds <= 0:
            return
        if rows == 1:
            self._waited += 1
            self.step_s = _moved(self.step_s, seconds)
        elif self.step_s > 0:
            self._cost[rows] = _moved(self._cost.get(rows, 0.0), seconds / self.step_s)

    def cost(self, rows: int) -> float:
        """c(rows), measured, or drawn from the nearest count of rows that was."""
        if rows in self._cost:
            return self._cost[rows]
        if not self._cost:
            return self.guess(rows)
        near = min(self._cost, key=lambda r: abs(r - rows))
        return 1 + (self._cost[near] - 1) * (rows - 1) / (near - 1)

    @staticmethod
    def guess(rows: int) -> float:
        """c(rows) as supposed before any was measured."""
        return 1 + _SLOPE * (rows - 1)

    @property
    def waits_no_more(self) -> bool:
        """Whether `due` would say so."""
        return self._waited >= self._pause

    def due(self) -> bool:
        """Whether to measure again, though what is known says that it does not pay.  True forgets
        what is known: the machine was another then."""
        if not self.waits_no_more:
            return False
        self._cost.clear()
        self._waited, self._pause = 0, min(2 * self._pause, _PAUSE[1])
        return True

    def paid(self) -> None:
        """It pays: should that end, it is tried again soon."""
        self._waited, self._pause = 0, _PAUSE[0]


def _moved(old: float, new: float) -> float:
    if not old:
        return new
    return old + _ALPHA * (min(max(new, old / _WILD), old * _WILD) - old)


class Speculator:
    """The guesses of one generation: `ids` is its list of tokens, prompt first, which grows."""

    def __init__(self, ids: list[int], drafting: Drafting, pace: Pace) -> None:
        self._ids, self._drafting, self._pace = ids, drafting, pace
        self._from = len(ids)
        self._seen = 0
        self._after: dict[tuple[int, ...], int] = {}  # pair or triple -> what followed it last
        self._trials = [0.0] * len(_FROM)
        self._hits = [0.0] * len(_FROM)

    def propose(self, room: int) -> list[int]:
        """The tokens to check now: none, or at most `room` of them."""
        self._catch_up()
        most = min(self._drafting.most, room)
        found = self._find(len(self._ids))
        if found is None or most < 1:
            return []
        at, length = found
        if self._drafting.forced:
            return self._draft(at, most)
        if not self._pace.step_s:
            return []
        count, gain = self._best(length, most, self._pace.cost)
        if gain > MARGIN:
            self._pace.paid()
            return self._draft(at, count)
        count, gain = self._best(length, most, self._pace.guess)
        return self._draft(at, count) if gain > MARGIN and self._pace.due() else []

    def rests(self) -> bool:
        """Is no guess worth its price for now, however long the match?  Then what follows may be
        written without a look at it in between."""
        most, pace = self._drafting.most, self._pace
        if self._drafting.forced or not pace.step_s or pace.waits_no_more:
            return False
        return self._best(_LONG, most, pace.cost)[1] <= MARGIN

    def chance(self, length: int) -> float:
        """How likely a lookup that matched `length` tokens is right."""
        k = _class(length)
        return (self._hits[k] + _PRIOR[k] * _WEIGHT) / (self._trials[k] + _WEIGHT)

    def _best(self, length: int, most: int, cost: Callable[[int], float]) -> tuple[int, float]:
        """(guesses, tokens per plain step's time) of the best number of guesses."""
        best, expected, all_right = (0, 0.0), 1.0, 1.0
        for count in range(1, most + 1):
            all_right *= self.chance(length + count - 1)
            expected += all_right
            best = max(best, (count, expected / cost(count + 1)), key=lambda b: b[1])
        return best

    def _catch_up(self) -> None:
        """Count what lookups would have given for the new tokens, and index them."""
        ids = self._ids
        for end in range(self._seen, len(ids)):
            found = self._find(end) if end >= self._from else None
            if found is not None:
                k = _class(found[1])
                self._trials[k] = self._trials[k] * _KEEP + 1
                self._hits[k] = self._hits[k] * _KEEP + (ids[found[0]] == ids[end])
            for n in (2, 3):
                if end >= n:
                    self._after[tuple(ids[end - n : end])] = end
        self._seen = len(ids)

    def _find(self, end: int) -> tuple[int, int] | None:
        """(where the text that ends at `end` went on before, how many tokens match)."""
        ids = self._ids
        for n in (3, 2):
            at = self._after.get(tuple(ids[end - n : end])) if end >= n else None
            if at is not None:
                while n < min(_LONG, at) and ids[at - n - 1] == ids[end - n - 1]:
                    n += 1
                return at, n
        return None

    def _draft(self, at: int, count: int) -> list[int]:
        """What followed there; where that is the draft itself, the text is taken to repeat."""
        known, draft = len(self._ids), list[int]()
        for i in range(at, at + count):
            draft.append(self._ids[i] if i < known else draft[i - known])
        return draft


def _class(length: int) -> int:
    return max(k for k, least in enumerate(_FROM) if k == 0 or length >= least)


class Later:
    """Something that takes seconds to make, made on a thread of its own when first asked for.

    An error in making it is raised to who waits, and else means that it is never had: what is
    made later is only ever there to be faster."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._thread: threading.Thread | None = None
        self._made: Any = None
        self._error: BaseException | None = None

    def __call__(self, wait: bool = False) -> Any:
        """It, or None as long as it is not ready; `wait` for it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lanewise-later", daemon=True)
            self._thread.start()
        if wait:
            self._thread.join()
            if self._error is not None:
                raise self._error
        return self._made

    def _run(self) -> None:
        try:
            self._made = self._make()
        except BaseException as error:
            self._error = error

    def close(self) -> None:
        """Wait for what is being made."""
        if self._thread is not None:
            self._thread.join()
