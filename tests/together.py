"""Work of several threads that begin at once."""

from __future__ import annotations

import threading
from collections.abc import Callable


def together(work: Callable[[int], None], count: int) -> None:
    """Run `work(i)` on threads that start at once; what they raise is raised."""
    failed: list[BaseException] = []
    gate = threading.Barrier(count)

    def body(i: int) -> None:
        try:
            gate.wait(30)
            work(i)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=body, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    if failed:
        raise failed[0]
