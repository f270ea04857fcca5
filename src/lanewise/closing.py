"""Things that are closed once used, as context managers."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
    """Leaving a `with` block closes, whether it ended well or not."""

    __slots__ = ()

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
