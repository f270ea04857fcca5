"""Lanewise compiles a computation over tensors into one native program, once, and runs it.

    import lanewise as lw

    with lw.compile("smollm2") as lane:
        for piece in lane.chat([{"role": "user", "content": "What is the capital of France?"}]):
            print(piece, end="", flush=True)

Laws: the public names are the sorted `__all__`, and each is loaded when it is first used, so that
importing the package costs next to nothing and loads no other package but those it needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {  # public name -> the module that has it
    "BuildError": "errors",
    "CheckpointError": "errors",
    "Generation": "lane",
    "GraphError": "errors",
    "Lane": "lane",
    "LanewiseError": "errors",
    "ModelError": "errors",
    "ModelInfo": "lane.spec",
    "PlanError": "errors",
    "Refused": "errors",
    "RunError": "errors",
    "Runtime": "tensor",
    "TextError": "errors",
    "UsageError": "errors",
    "bf16": "tensor",
    "compile": "lane",
    "f16": "tensor",
    "f32": "tensor",
    "f8_e4m3": "tensor",
    "f8_e5m2": "tensor",
    "i32": "tensor",
    "inspect": "lane",
    "pull": "checkpoint.pull",
    "u32": "tensor",
}

__all__ = [  # noqa: RUF022 (in the order of `sorted`: f16 before f8)
    "BuildError",
    "CheckpointError",
    "Generation",
    "GraphError",
    "Lane",
    "LanewiseError",
    "ModelError",
    "ModelInfo",
    "PlanError",
    "Refused",
    "RunError",
    "Runtime",
    "TextError",
    "UsageError",
    "__version__",
    "bf16",
    "compile",
    "f16",
    "f32",
    "f8_e4m3",
    "f8_e5m2",
    "i32",
    "inspect",
    "pull",
    "u32",
]

if TYPE_CHECKING:
    from lanewise.checkpoint.pull import pull
    from lanewise.errors import (
        BuildError,
        CheckpointError,
        GraphError,
        LanewiseError,
        ModelError,
        PlanError,
        Refused,
        RunError,
        TextError,
        UsageError,
    )
    from lanewise.lane import Generation, Lane, compile, inspect
    from lanewise.lane.spec import ModelInfo
    from lanewise.tensor import Runtime, bf16, f8_e4m3, f8_e5m2, f16, f32, i32, u32


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'lanewise' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"lanewise.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
