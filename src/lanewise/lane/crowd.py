"""How many threads a decode step runs on when others want the cores too.

A step has some 150 barriers, and each waits for the slowest thread: where twice as many processes
as cores are busy, two threads that are seldom on a core together are slower than one alone.

Laws: no bit depends on the number of threads, so it may change from step to step; all threads are
used until steps take `SLOW` times what they did, fewer are kept only while they measure faster,
and what was tried in vain is tried ever more seldom.
"""

from __future__ import annotations

from typing import Final

SLOW: Final = 1.8
GAIN: Final = 0.9  # of the other's time: less is noise
TRIAL: Final = 24  # steps of which a mean is taken
PATIENCE: Final = 64  # steps until another number is tried again, at first
_MOST: Final = 4096
_DRIFT: Final = 1.002  # a step that once was quick is forgotten slowly: texts grow


class Crowd:
    """The number of threads of the next step, by the seconds of those before."""

    def __init__(self, threads: int) -> None:
        self.full = threads
        self.threads = threads  # of the next step
        self._quick = float("inf")  # a step on all threads, when nobody was in the way
        self._sum, self._count = 0.0, 0
        self._home, self._before = threads, 0.0  # what a trial is held against
        self._rest, self._patience = 0, PATIENCE
        self._slow = False  # the mean before this one was

    def took(self, seconds: float) -> None:
        """A step on `threads` took so long."""
        if self.full == 1:
            return
        if self.threads == self.full:
            self._quick = min(self._quick * _DRIFT, seconds)
        self._sum, self._count = self._sum + seconds, self._count + 1
        self._rest = max(0, self._rest - 1)
        if self._count < TRIAL:
            return
        mean = self._sum / self._count
        self._sum, self._count = 0.0, 0
        if self.threads != self._home:
            self._judge(mean)
        elif self._away(mean) and not self._rest:
            self._before = mean
            self.threads = max(1, self.full // 2) if self._home == self.full else self.full

    def _away(self, mean: float) -> bool:
        """Whether another number is worth a trial: on all threads, two slow means in a row (one
        may be half of another time)."""
        slow, self._slow = self._slow, mean > SLOW * self._quick
        return self._home != self.full or (slow and self._slow)

    def _judge(self, mean: float) -> None:
        if mean < GAIN * self._before:
            self._home, self._patience = self.threads, PATIENCE
        else:
            self._patience = min(2 * self._patience, _MOST)
        self.threads, self._rest = self._home, self._patience
