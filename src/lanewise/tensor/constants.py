"""The numbers of a constant: taken as they are, or refused; never changed in silence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lanewise.dtypes import DTYPES
from lanewise.ir.ops.rules import SCALARS
from lanewise.tensor.handles import State, Tensor

if TYPE_CHECKING:
    from lanewise.tensor.builder import Builder


def held(b: Builder, array: Any) -> NDArray[Any] | None:
    """A constant's numbers in a dtype of ours; None, refused, where that would change them."""
    if isinstance(array, Tensor | State):
        b.refuse("operand", f"a constant is {array!r}, which is recorded already",
                 "use it as it is: a constant is of numbers")  # fmt: skip
        return None
    try:
        value = np.array(array, order="C", ndmin=1)
    except ValueError:  # of lists
        b.refuse("shape", "a constant's rows are of several lengths",
                 "rows of one length: fill the short ones up")  # fmt: skip
        return None
    if not value.size:
        b.refuse("shape", f"a constant has shape {value.shape}: it holds no number",
                 "every dimension is positive; a scalar is (1,)")  # fmt: skip
        return None
    if value.dtype not in (np.int64, np.float64, *(DTYPES[n].numpy for n in SCALARS)):
        whole = value.dtype.kind in "bui"
        b.refuse(
            "dtype",
            f"a constant of {value.dtype}: {', '.join(SCALARS)} are held",
            f"np.asarray(values).astype(np.{'uint32' if whole else 'float32'})",
        )
        return None
    if value.dtype == np.int64:
        wrong = value[(value < 0) | (value > 0xFFFFFFFF)]
        if wrong.size:
            signed = value.min() >= -(2**31) and value.max() < 2**31
            b.refuse(
                "dtype",
                f"a constant holds {wrong[0]}, which is no u32",
                "np.asarray(values).astype(np.int32)"
                if signed
                else "np.asarray(values).astype(np.float32), if rounding is fine",
            )
            return None
        return value.astype(np.uint32)
    if value.dtype != np.float64:
        return value
    with np.errstate(over="ignore", under="ignore"):  # refused below, not warned of
        rounded = value.astype(np.float32)
    wrong = value[np.isinf(rounded) & np.isfinite(value)]
    if wrong.size:
        b.refuse("dtype", f"a constant holds {wrong[0]}, beyond f32 (3.4e38)",
                 "scale the numbers, or give np.inf")  # fmt: skip
        return None
    wrong = value[(rounded != value) & ~np.isnan(value)]
    if isinstance(array, np.ndarray) and wrong.size:
        b.refuse("dtype", f"a constant of float64 holds {wrong[0]!r}, which f32 would round",
                 "say so: .astype(np.float32)")  # fmt: skip
        return None
    return rounded
