"""Things of one process, and such as are closed once used, as context managers."""

from __future__ import annotations

from types import TracebackType
from typing import ClassVar, NoReturn, Self, SupportsIndex

from lanewise.errors import UsageError, call_site


class OfThisProcess:
    """What holds memory, locks or threads of this process, and is neither copied nor pickled."""

    __slots__ = ()
    _again: ClassVar[str] = "open it in each process"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise UsageError("usage.pickle", f"a {type(self).__name__} belongs to this process: it is "
                         "neither pickled nor copied", place=call_site(), remedy=self._again)


class Closing(OfThisProcess):
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
