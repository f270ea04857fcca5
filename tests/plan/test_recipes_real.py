"""Recipes are real: a selection names the recipe of its product, and the recipe's NumPy model
gives the kernel's bits on real rows of the demo model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lanewise.checkpoint.gguf import Gguf
from lanewise.ir.builder import GraphBuilder
from lanewise.ir.graph import Type
from lanewise.kernels import recipes
from lanewise.kernels.recipes_rows import rms_norm
from lanewise.pipeline import Options
from lanewise.quant.format import QuantArray, format_of
from tests.kernels.matrices import taken_apart
from tests.native import Native, same_bits

ROWS = 48


def matrix(path: Path, name: str, rows: int) -> QuantArray:
    """The first rows of a tensor, as they are in the file."""
    with Gguf(path) as file:
        info = file.tensors[name]
        k = info.shape[1]
        raw = np.asarray(file.raw(name)).reshape(info.shape[0], -1)[:rows].copy()
    assert raw.shape[1] == format_of(info.format).row_bytes(k)
    return QuantArray(info.format, (rows, k), raw)


def hidden(path: Path, tokens: int) -> np.ndarray:
    """What the first layer's products read: normed embeddings of the first tokens."""
    table = matrix(path, "token_embd.weight", 400).decode()[-tokens:]
    with Gguf(path) as file:
        gain = np.asarray(file.raw("blk.0.attn_norm.weight")).view(np.float32)
    return np.stack([rms_norm(row, gain, 1e-5) for row in table])


@pytest.mark.parametrize("activations", ["int8x2", "int8", "f32"])
@pytest.mark.parametrize(("tensor", "fmt"), [
    ("blk.0.attn_q.weight", "q4_1"), ("blk.17.attn_k.weight", "q4_1"),
    ("token_embd.weight", "q8_0"),
])  # fmt: skip
def test_model_of_the_recipe_gives_the_bits(
    smollm2_path: Path, tensor: str, fmt: str, activations: str
) -> None:
    w, x = matrix(smollm2_path, tensor, ROWS), hidden(smollm2_path, 7)
    b = GraphBuilder("product")
    root = b.root("input", "x", Type("f32", x.shape))
    b.output("y", b.apply("linear", root, b.root("weight", "w", Type(fmt, w.shape))))
    native = Native(b.finish(), {"x": x, "w": w}, Options(activations=activations))
    names = [s.recipe for _, s in native.plan.selections if s.recipe.startswith("product")]
    kind = "double" if activations == "f32" else "quantised"
    act = "f64" if activations == "f32" else activations
    assert names == [f"product/{kind}/{fmt}/{act}"]
    apart = taken_apart(fmt, w.data)
    if activations == "f32":
        want = recipes.reference_product(w.decode(), x)
    else:
        want = recipes.quantized_product(apart, recipes.quantize(x, activations))
    assert same_bits(native.run({"x": x})["y"], want)
    exact = x.astype(np.float64) @ w.decode().astype(np.float64).T
    worst = np.abs(want - exact).max() / np.abs(exact).max()
    assert worst < {"int8x2": 2e-4, "int8": 2e-2, "f32": 1e-6}[activations]


def test_a_step_names_a_recipe_for_every_product(smollm2_path: Path) -> None:
    from lanewise.lane.form import Cut
    from lanewise.models.family import open_model
    from lanewise.pipeline import plan_graph

    with Gguf(smollm2_path) as file:
        family, spec = open_model(file)
        graph = family.author(spec, Cut("decode", 1, context=256))
    plan = plan_graph(graph)
    named = [s.recipe for _, s in plan.selections if s.kernel.startswith("matmul")]
    assert len(named) == 4 * spec.layers + 1  # q·k·v as one, output, gate·up, down; the head
    assert set(named) == {"product/quantised/q4_1/int8x2", "product/quantised/q8_0/int8x2"}
    assert all(s.recipe and s.why for _, s in plan.selections)
