"""Family: a row that teaches Lanewise an architecture.

Laws: a family states only what is its own (which hyperparameters, which tensors, the order of
blocks); it never restates attention, never says quantise, and never looks at a tensor's numbers.
Rows are named by strings and imported when a checkpoint asks for them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from lanewise.checkpoint.source import Checkpoint
from lanewise.errors import ModelError
from lanewise.ir.builder import GraphBuilder
from lanewise.ir.graph import Graph
from lanewise.lane.form import Cut
from lanewise.lane.spec import ModelSpec
from lanewise.models.blocks import Step
from lanewise.models.checks import Expected, check_tensors, formats_of

# general.architecture -> module:attribute of its Family
FAMILIES: Final[Mapping[str, str]] = {
    "llama": "lanewise.models.llama:FAMILY",
    "qwen3": "lanewise.models.qwen3:FAMILY",
}


@dataclass(frozen=True)
class Family:
    """One row: the architectures that it reads, what a checkpoint's metadata says
    (ModelError "model.*", all collected), the tensors of a spec, the step over rows."""

    architectures: tuple[str, ...]
    doc: str
    read_spec: Callable[[Checkpoint], ModelSpec]
    tensors: Callable[[ModelSpec], tuple[Expected, ...]]
    step: Callable[[Step], None]

    def open(self, checkpoint: Checkpoint) -> ModelSpec:
        """The spec of a checkpoint whose every tensor was checked against it.

        Raises ModelError (or several as Refused): "model.hyperparameter",
        "model.missing_tensor", "model.shape", "model.format", "model.unknown_tensor"."""
        spec = self.read_spec(checkpoint)
        expected = self.tensors(spec)
        check_tensors(checkpoint, expected)
        return formats_of(spec, checkpoint, expected)

    def unused(self, spec: ModelSpec, checkpoint: Checkpoint) -> tuple[str, ...]:
        """Tensors of the checkpoint that no step reads, in the file's order."""
        used = {e.name for e in self.tensors(spec)} | {"rope_freqs.weight"}
        return tuple(name for name in checkpoint.tensors if name not in used)

    def author(self, spec: ModelSpec, cut: Cut) -> Graph:
        """The graph of one cut of the step."""
        shapes = {e.name: e.shape for e in self.tensors(spec)}
        step = Step(GraphBuilder(cut.kind), spec, cut, shapes)
        self.step(step)
        return step.b.finish()


def family_of(architecture: object) -> Family:
    """The row of an architecture; ModelError "model.architecture" names those that we run."""
    where = FAMILIES.get(architecture) if isinstance(architecture, str) else None
    if where is None:
        what = "names no architecture" if architecture is None else (
            f"is of the architecture {str(architecture)[:64]!r}, which we do not run"
        )
        raise ModelError(
            "model.architecture",
            f"the checkpoint {what}",
            place="general.architecture",
            remedy=f"known architectures: {', '.join(sorted(FAMILIES))}",
        )
    module, _, attribute = where.partition(":")
    return getattr(importlib.import_module(module), attribute)


def open_model(checkpoint: Checkpoint) -> tuple[Family, ModelSpec]:
    """The family and the checked spec of a checkpoint."""
    family = family_of(checkpoint.metadata.get("general.architecture"))
    return family, family.open(checkpoint)
