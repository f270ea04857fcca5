"""Our authored steps, interpreted, against PyTorch and transformers on tiny random models.

They fix what no other test can: which channels a rope pairs, where q and k are normed, which
rows a converter permuted, what Llama 3's factors divide.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lanewise.checkpoint.gguf import Gguf
from lanewise.ir.interp import interpret
from lanewise.ir.text import parse_graph, print_graph
from lanewise.lane.form import Cut
from lanewise.models.family import open_model
from tests.models.support import GOLDEN, bindings, interpreted

LOGITS = np.load(GOLDEN / "logits.npz")
NAMES = [n for n in LOGITS.files if n not in ("tokens", "rows")]
IDS = [int(t) for t in LOGITS["tokens"]]


@pytest.mark.parametrize("name", NAMES)
def test_logits(name: str) -> None:
    found = interpreted(GOLDEN / f"{name}.gguf", IDS)[LOGITS["rows"]]
    assert np.abs(found - LOGITS[name]).max() <= 1e-5 * np.abs(LOGITS[name]).max()


@pytest.mark.parametrize("name", ["llama_tied.f32", "qwen3_tied.f16"])
def test_the_f16_cache_rounds_and_no_more(name: str) -> None:
    found = interpreted(GOLDEN / f"{name}.gguf", IDS, kv="f16")[LOGITS["rows"]]
    error = np.abs(found - LOGITS[name]).max()
    assert 0 < error <= 5e-3 * np.abs(LOGITS[name]).max()


@pytest.mark.parametrize(("name", "style"), [
    ("llama_tied.f32", "half"), ("qwen3_untied.f32", "interleaved"),
])  # fmt: skip
def test_the_other_rope_style_is_wrong(name: str, style: str) -> None:
    """The golden logits tell: with channels paired the other way they are far off."""
    with Gguf(GOLDEN / f"{name}.gguf") as checkpoint:
        family, spec = open_model(checkpoint)
        spec = replace(spec, rope=replace(spec.rope, style=style))
        cut = Cut("logits", len(IDS), "all", len(IDS), "f32", sample=False)
        graph = family.author(spec, cut)
        bound = bindings(graph, checkpoint, IDS) | {"rope": spec.rope.table(len(IDS))}
        found = interpret(graph, bound)["logits"][LOGITS["rows"]]
    assert np.abs(found - LOGITS[name]).max() > 0.1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cut", [
    Cut("decode", 1), Cut("prefill", 512), Cut("logits", 64, "all", sample=False),
    Cut("decode", 1, kv="f32", context=100), Cut("batch", 4, sequences=4),
])  # fmt: skip
def test_every_cut_prints_and_parses_back(name: str, cut: Cut) -> None:
    with Gguf(GOLDEN / f"{name}.gguf") as checkpoint:
        family, spec = open_model(checkpoint)
        graph = family.author(spec, cut)
    assert parse_graph(print_graph(graph)) == graph
    outs = {n: graph.type(r) for n, r in graph.outputs}
    assert outs["logits"].shape == (cut.outs, spec.vocab)
    assert ("next" in outs) == cut.sample
    assert {f"{kind}.{i}" for kind in "kv" for i in range(spec.layers)} <= set(outs)


def test_chunks_are_one_prompt() -> None:
    """Decode steps over a carried cache give the logits of the whole prompt at once."""
    with Gguf(GOLDEN / "llama3_untied.f32.gguf") as checkpoint:
        family, spec = open_model(checkpoint)
        graph = family.author(spec, Cut("prefill", 16, context=80, kv="f32"))
        zero = np.zeros(1)
        bound = bindings(graph, checkpoint, [0] * 16)
        bound |= {"rope": spec.rope.table(80), "top_k": zero.astype(np.uint32)}
        bound |= {n: zero.astype(np.float32) for n in ("temperature", "top_p", "min_p", "draws")}
        at = 0
        for size in (16, 1, 13, 16, 2, 16):
            rows = np.zeros(16, np.uint32)
            rows[:size] = IDS[at : at + size]
            bound["tokens"] = rows
            bound["positions"] = np.arange(at, at + 16, dtype=np.uint32)
            bound |= {"rows": np.array([size], np.uint32), "outs": np.array([1], np.uint32),
                      "out_rows": np.array([size - 1], np.uint32)}
            result = interpret(graph, bound)
            bound |= result.states
            at += size
            if at - 1 in LOGITS["rows"]:
                want = LOGITS["llama3_untied.f32"][list(LOGITS["rows"]).index(at - 1)]
                assert np.abs(result["logits"][0] - want).max() <= 1e-5 * np.abs(want).max()
                assert result["next"][0] == want.argmax()
    assert at == 64
