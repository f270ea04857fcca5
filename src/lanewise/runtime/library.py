"""A shared library loaded, and its functions typed.

Laws: calls release the GIL; a name that the library lacks is our error, with the name in it.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from lanewise.errors import BuildError

# How signatures are written: one letter a type; the first is the result's, "v" for none.
TYPES: dict[str, Any] = {
    "v": None,
    "p": ctypes.c_void_p,
    "i": ctypes.c_int32,
    "u": ctypes.c_uint32,
    "l": ctypes.c_int64,
    "f": ctypes.c_float,
}


class Library:
    """A loaded shared library; it stays loaded for the life of the process."""

    def __init__(self, path: Path) -> None:
        """Raises BuildError ``build.load``: the file cannot be loaded (a symbol is missing, the
        folder forbids execution)."""
        self.path = path
        try:
            self._dll = ctypes.CDLL(str(path))
        except OSError as e:
            remedy = "lanewise cache clear"
            if "undefined symbol" in str(e):
                remedy = "this is a defect of lanewise: please report it"
            elif "failed to map" in str(e) or "not permitted" in str(e):
                remedy = "set LANEWISE_CACHE_DIR to a file system that allows execution"
            raise BuildError("build.load", str(e), place=path.name, remedy=remedy) from e

    def has(self, symbol: str) -> bool:
        """True if the library exports the symbol."""
        return hasattr(self._dll, symbol)

    def function(self, symbol: str, signature: str) -> Any:
        """A function by name and signature, as ``function("lw_pack_q4_1", "vppllll")``.

        Raises BuildError ``build.symbol``.
        """
        try:
            found = self._dll[symbol]  # an object of its own per look-up, so types do not mix
        except AttributeError as e:
            raise BuildError(
                "build.symbol", f"the library has no {symbol!r}", place=self.path.name,
                remedy="this is a defect of lanewise: please report it",
            ) from e  # fmt: skip
        found.restype = TYPES[signature[0]]
        found.argtypes = [TYPES[letter] for letter in signature[1:]]
        return found

    def address(self, symbol: str) -> int:
        """The address of a symbol; raises as `function` does."""
        value = ctypes.cast(self.function(symbol, "v"), ctypes.c_void_p).value
        assert value is not None
        return value
