"""The gate: which runs count while neighbours come and go."""

from __future__ import annotations

from benchmarks import steady


class Machine:
    """A clock, and a rate that is slow within given spans of it."""

    def __init__(self, *slow: tuple[float, float]) -> None:
        self.now, self.slow = 0.0, slow

    def rate(self) -> float:
        return 35.0 if any(a <= self.now < b for a, b in self.slow) else 55.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def action(self) -> float:
        self.now += 10.0
        return self.now


def gate(machine: Machine) -> steady.Gate:
    return steady.Gate(0.85, machine.rate, machine.sleep)


def test_a_quiet_machine_runs_everything_once() -> None:
    machine = Machine()
    g = gate(machine)
    assert [g.run(machine.action) for _ in range(3)] == [10.0, 20.0, 30.0]
    assert (g.runs, g.repeated, g.unsteady, g.best) == (3, 0, 0, 55.0)


def test_a_run_that_ends_slow_is_repeated_when_the_rate_is_back() -> None:
    machine = Machine((8.0, 30.0))
    g = gate(machine)
    assert g.run(machine.action) == 40.0
    assert (g.runs, g.repeated, g.unsteady) == (1, 1, 0)


def test_a_slow_machine_is_told_and_does_not_wait_for_ever() -> None:
    machine = Machine((1.0, 1e9))
    g = gate(machine)
    last = g.run(machine.action)
    waits = (steady.TRIES - 1) * steady.WAIT_S
    assert last == steady.TRIES * 10 + waits
    assert (g.repeated, g.unsteady) == (steady.TRIES - 1, 1) and "0 of 1 runs" in g.told()


def test_a_rate_may_be_given_where_it_begins_slow() -> None:
    machine = Machine((0.0, 15.0))
    g = steady.Gate(48.0, machine.rate, machine.sleep)
    assert g.run(machine.action) == 25.0 and g.repeated == 0 and "48.0 GB/s" in g.told()


def test_memory_is_read_at_all() -> None:
    rate = steady.Memory(1)()
    assert 0.1 < rate < 10_000
