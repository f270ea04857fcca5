"""Runs that count only while the machine's memory keeps its rate.

On a shared machine other tenants take a third of the memory's rate for 10 to 40 seconds at a time;
whoever runs then is measured against them.  A gate reads 256 MiB before and after every run of
every engine alike: a run begins when the rate is back, and is repeated if the rate was gone at its
end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from lanewise.runtime.ruler import Ruler

BYTES = 256 << 20
WAIT_S = 30.0  # for the rate to come back, before each run
TRIES = 3
Result = TypeVar("Result")


class Memory:
    """How fast the machine reads just now, in GB/s."""

    def __init__(self, threads: int) -> None:
        self._ruler = Ruler(threads, BYTES)

    def __call__(self) -> float:
        return self._ruler.read(3) / 1e9


@dataclass
class Gate:
    """Lets a run begin, and count, while `rate()` is at least `least`: GB/s, or, up to 1, a share
    of the best that was seen (which is little to go by where it begins slow).  After TRIES a run
    counts as it is, and `unsteady` tells how many did."""

    least: float
    rate: Callable[[], float]
    sleep: Callable[[float], None] = time.sleep
    best: float = field(default=0.0, init=False)
    runs: int = field(default=0, init=False)
    repeated: int = field(default=0, init=False)
    unsteady: int = field(default=0, init=False)

    @property
    def bound(self) -> float:
        return self.least if self.least > 1 else self.least * self.best

    def steady(self) -> bool:
        rate = self.rate()
        self.best = max(self.best, rate)
        return rate >= self.bound

    def run(self, action: Callable[[], Result]) -> Result:
        """What an action gives that began and ended at the machine's own rate."""
        self.runs += 1
        for _ in range(TRIES - 1):
            self._wait()
            found = action()
            if self.steady():
                return found
            self.repeated += 1
        self._wait()
        found = action()
        self.unsteady += not self.steady()
        return found

    def _wait(self) -> None:
        waited = 0.0
        while not self.steady() and waited < WAIT_S:
            self.sleep(1.0)
            waited += 1.0

    def told(self) -> str:
        return (
            f"memory at {self.bound:.1f} GB/s or more, of {self.best:.1f}, before and after a run: "
            f"{self.runs - self.unsteady} of {self.runs} runs, {self.repeated} repeated for it"
        )
