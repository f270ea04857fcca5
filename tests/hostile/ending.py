"""The command line, ended by a signal at a stage of our choice.

    python -m tests.hostile.ending STAGE SIGNAL run MODEL PROMPT ...

The signal comes from this process itself when the stage first reports something done ("answer":
when the first piece of the answer was written), so that nothing depends on the clock.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from lanewise.cli import common, main


def end(number: int) -> None:
    os.kill(os.getpid(), number)


def arm(stage: str, number: int) -> None:
    plain = common.open_lane

    def open_lane(model: str, options: Any, progress: Any) -> Any:
        def told(now: str, done: int, total: int, detail: str = "") -> Any:
            if now == stage and done > 0:
                end(number)
            return progress(now, done, total, detail)

        lane = plain(model, options, told)
        if stage == "answer":
            chat = lane.chat

            def ended(*args: Any, **more: Any) -> Any:
                generation = chat(*args, **more)
                step = generation._step

                def once() -> str:
                    if generation.text:
                        end(number)
                    return step()

                generation._step = once
                return generation

            lane.chat = ended
        return lane

    common.open_lane = open_lane


if __name__ == "__main__":
    arm(sys.argv[1], getattr(signal, sys.argv[2]))
    sys.argv = ["lanewise", *sys.argv[3:]]
    main()
