"""NumPy's matrix products on one thread, while the interpreter runs.

OpenBLAS lets its threads spin at every product; the references make thousands of small ones.  On
a busy machine of two cores a model's step took 19 s with two threads and 1 s with one.  Only the
library inside NumPy's wheels is looked for; where it is not found nothing changes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

_NAMES = (
    ("scipy_openblas_get_num_threads64_", "scipy_openblas_set_num_threads64_"),
    ("openblas_get_num_threads64_", "openblas_set_num_threads64_"),
    ("scipy_openblas_get_num_threads", "scipy_openblas_set_num_threads"),
    ("openblas_get_num_threads", "openblas_set_num_threads"),
)


@cache
def _threads() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """(get, set) of the number of threads."""
    package = Path(np.__file__).parent
    for folder in (package.parent / "numpy.libs", package / ".dylibs"):
        for path in sorted(folder.glob("*openblas*")):
            try:
                library = ctypes.CDLL(str(path))
            except OSError:
                continue
            for get, put in _NAMES:
                if hasattr(library, get) and hasattr(library, put):
                    return getattr(library, get), getattr(library, put)
    return None


@contextmanager
def one_thread() -> Generator[None, None, None]:
    """Inside, products use one thread; the number of before comes back."""
    found = _threads()
    if found is None:
        yield
        return
    get, put = found
    before = get()
    put(1)
    try:
        yield
    finally:
        put(before)
