"""Checks of a checkpoint against what a family expects: collected, named, each with a remedy.

Metadata is hostile until it is checked: counts are bounded before anything is sized by them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from lanewise.checkpoint.source import Checkpoint
from lanewise.errors import LanewiseError, ModelError, collect
from lanewise.lane.spec import ModelSpec

# The formats whose products and gathers have kernels; everything else decodes, but does not run.
MATRIX_FORMATS: Final = (
    "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k",
)
_SHOWN: Final = 8  # errors of one kind that are spelled out; the rest are counted
_AGAIN: Final = "the file is damaged or was converted wrongly: fetch it again or convert it anew"


@dataclass(frozen=True, slots=True)
class Expected:
    """A tensor that a step reads.  Rank 2: a matrix, in any of MATRIX_FORMATS; rank 1: f32."""

    name: str
    shape: tuple[int, ...]


class Hyper:
    """Reads the hyperparameters of one architecture and collects what is wrong with them."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self._metadata, self._prefix = metadata, f"{architecture}."
        self.errors: list[LanewiseError] = []

    def refuse(self, key: str, message: str, remedy: str = _AGAIN) -> None:
        self.errors.append(
            ModelError("model.hyperparameter", message, place=self._prefix + key, remedy=remedy)
        )

    def get(self, key: str, default: Any = None) -> Any:
        return self._metadata.get(self._prefix + key, default)

    def count(self, key: str, high: int, default: int | None = None, low: int = 1) -> int:
        """An integer within [low, high]; on refusal the smallest legal one, to go on checking."""
        value = self.get(key, default)
        if value is None:
            self.refuse(key, "the checkpoint does not say it", "convert the model again")
            return low
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse(key, f"it is {_short(value)}, not one integer")
            return low
        if not low <= value <= high:
            self.refuse(key, f"it is {value}, not within {low} to {high}")
            return low
        return value

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number within [low, high]."""
        value = self.get(key, default)
        if value is None:
            self.refuse(key, "the checkpoint does not say it", "convert the model again")
            return low
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(key, f"it is {_short(value)}, not a number")
            return low
        if not (math.isfinite(value) and low <= value <= high):
            self.refuse(key, f"it is {value}, not within {low:g} to {high:g}")
            return low
        return float(value)

    def word(self, key: str, default: str) -> str:
        """A string."""
        value = self.get(key, default)
        if not isinstance(value, str):
            self.refuse(key, f"it is {_short(value)}, not a string")
            return default
        return value

    def absent(self, key: str, what: str) -> None:
        """Refuse a feature that this family does not run, if the checkpoint asks for it."""
        value = self.get(key)
        if not isinstance(value, int | float | str | None) or value not in (None, 0, "", "none"):
            self.refuse(key, f"it is {_short(value)}: {what} is not run by this family",
                        "use a dense model of this family")


def _short(value: object) -> str:
    """A value for people: lists and arrays by their length, text cut."""
    if isinstance(value, list | np.ndarray):
        return f"an array of {len(value)}"
    text = repr(value)
    return text if len(text) <= 48 else text[:45] + "..."


def check_tensors(checkpoint: Checkpoint, expected: Sequence[Expected]) -> None:
    """Every expected tensor is there, of the right shape and a format that runs, and no layer
    holds another; all refusals are collected (the first 8 of a kind spelled out, the rest
    counted)."""
    tensors = checkpoint.tensors
    missing = [e for e in expected if e.name not in tensors]
    errors = _some(
        [
            ModelError(
                "model.missing_tensor",
                f"the checkpoint has no such tensor ({'x'.join(map(str, e.shape))})",
                place=e.name,
                remedy="the file is incomplete, or was made by an unusual converter",
            )
            for e in missing[: _SHOWN + 1]
        ],
        len(missing),
    )
    shapes: list[LanewiseError] = []
    formats: list[LanewiseError] = []
    for e in expected:
        tensor = tensors.get(e.name)
        if tensor is None:
            continue
        if tuple(tensor.shape) != e.shape:
            shapes.append(ModelError(
                "model.shape",
                f"its shape is {list(tensor.shape)}, the hyperparameters ask for {list(e.shape)}",
                place=e.name,
                remedy=_AGAIN,
            ))
        elif tensor.format not in (MATRIX_FORMATS if len(e.shape) == 2 else ("f32",)):
            wanted = ", ".join(MATRIX_FORMATS) if len(e.shape) == 2 else "f32 (a vector)"
            formats.append(ModelError(
                "model.format",
                f"its format {tensor.format} does not run",
                place=e.name,
                remedy=f"quantise the model to one of: {wanted}",
            ))
    known = {e.name for e in expected}
    # A layer's tensor that no block reads means another model than the one that would run.
    unknown = [
        ModelError(
            "model.unknown_tensor",
            "the family's layers have no such tensor, so the model must be another",
            place=name[:96],
            remedy="use a model of plain blocks, or a newer release of lanewise",
        )
        for name in tensors
        if name.startswith("blk.") and name not in known
    ]
    for kind in (shapes, formats, unknown):
        errors += _some(kind, len(kind))
    collect(errors)


def _some(errors: Sequence[LanewiseError], total: int) -> list[LanewiseError]:
    """The first few of one kind; one more error counts the others."""
    shown = list(errors[:_SHOWN])
    if total > _SHOWN:
        shown.append(ModelError(errors[0].code, f"and {total - _SHOWN} tensors more"))
    return shown


def formats_of(
    spec: ModelSpec, checkpoint: Checkpoint, expected: Sequence[Expected]
) -> ModelSpec:
    """The spec with the format of every tensor that its step reads."""
    return replace(
        spec, formats=tuple((e.name, checkpoint.tensors[e.name].format) for e in expected)
    )
