"""The examples run; the transformer is an independent float64 program's."""

from __future__ import annotations

import numpy as np
import pytest

from examples import linear_attention, moe, paged_batch
from examples import transformer as example
from lanewise import tensor as t
from lanewise.quant.format import FORMATS
from tests.house.rules import ROOT
from tests.tensor.support import run, runtime

C = example.Config()
PROMPTS = [[5, 17, 3, 80, 2], [9, 1]]


@pytest.fixture(scope="module")
def weights():
    return example.random_weights(C)


def wide(weights) -> dict[str, np.ndarray]:
    decode = FORMATS["q8_0"].decode
    assert decode is not None
    rows = {n: w.astype(np.float64) for n, w in weights.items() if n != "embed"}
    embed = decode(weights["embed"]).reshape(C.vocab, C.width)
    return {**rows, "embed": embed.astype(np.float64)}


def norm(x, gain):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + C.eps) * gain


def turn(x, position):
    """Pairs (2i, 2i+1) as complex numbers."""
    z = x[..., 0::2] + 1j * x[..., 1::2]
    z = z * np.exp(1j * position * C.base ** (-np.arange(C.head // 2) / (C.head // 2)))
    return np.stack([z.real, z.imag], -1).reshape(x.shape)


def exact(w, tokens) -> np.ndarray:
    """Logits of the last token, float64: one sequence, no cache, no batch (f16 rounding of the
    cache is the only thing taken over)."""
    x = w["embed"][tokens]
    n = len(tokens)
    for i in range(C.layers):
        h = norm(x, w[f"{i}.norm"])
        q = (h @ w[f"{i}.q"].T).reshape(n, C.heads, C.head)
        k, v = ((h @ w[f"{i}.{m}"].T).reshape(n, C.kv_heads, C.head) for m in "kv")
        q, k = (np.stack([turn(row, p) for p, row in enumerate(m)]) for m in (q, k))
        k, v = (m.astype(np.float16).astype(np.float64) for m in (k, v))
        y = np.zeros((n, C.heads, C.head))
        for p in range(n):
            for g in range(C.heads):
                kv = g // (C.heads // C.kv_heads)
                s = k[: p + 1, kv] @ q[p, g] / np.sqrt(C.head)
                e = np.exp(s - s.max())
                y[p, g] = e / e.sum() @ v[: p + 1, kv]
        x = x + y.reshape(n, -1) @ w[f"{i}.o"].T
        h = norm(x, w[f"{i}.mlp"])
        gate = h @ w[f"{i}.gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w[f"{i}.up"].T)) @ w[f"{i}.down"].T
    return norm(x[-1], w["last_norm"]) @ w["embed"].T


def test_the_transformer_decodes_two_interleaved_sequences(weights):
    w = wide(weights)
    model = example.Generator(runtime(), C, weights, activations="f32")
    said = [list(p) for p in PROMPTS]
    tokens, logits = model.feed(PROMPTS)
    for _ in range(5):
        for s in range(2):
            want = exact(w, said[s])
            # f16 rounding of a key may fall the other way: its size, not its bits
            assert np.abs(logits[s] - want).max() < 2e-3 * np.abs(want).max()
            assert tokens[s] == np.argmax(want)
            said[s].append(int(tokens[s]))
        tokens, logits = model.feed([[x[-1]] for x in said])
    # sequence 0 rests, sequence 1 takes a chunk: a mixed step
    before = model.lengths[0]
    _, mixed = model.feed([[], [7, 7, 7]])
    assert model.lengths[0] == before
    want = exact(w, [*said[1], 7, 7, 7])
    assert np.abs(mixed[1] - want).max() < 2e-3 * np.abs(want).max()
    model.plans.close()


def test_interleaved_is_alone_and_chunks_are_single_steps_bit_for_bit(weights):
    """Also over several pages, in the order that the pool gave them."""
    rng = np.random.default_rng(1)
    long = rng.integers(0, C.vocab, 70).tolist()
    both = example.Generator(runtime(), C, weights)
    both.feed([long[:3], [4]])
    both.feed([long[3:40], []])
    both.feed([[], [8, 9]])
    _, together = both.feed([long[40:], [1]])
    single = example.Generator(runtime(), C, weights)
    for token in long:
        _, alone = single.feed([[token], []])
    assert (alone[0] == together[0]).all()
    assert single.pages[0] != both.pages[0]
    for model in (both, single):
        model.plans.close()


def test_a_seed_gives_a_text(weights):
    texts = []
    for seed in (1, 1, 2):
        model = example.Generator(runtime(), C, weights)
        said = [[int(x)] for x in model.feed(PROMPTS, 0.9, seed)[0]]
        for _ in range(8):
            for s, x in zip(said, model.feed([[s[-1]] for s in said], 0.9, seed)[0], strict=True):
                s.append(int(x))
        texts.append(said)
        model.plans.close()
    assert texts[0] == texts[1] != texts[2]


def test_the_page_about_this_layer_is_true(capsys):
    import re

    text = (ROOT / "docs" / "tensor.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    found: dict[str, np.ndarray] = {}
    exec(code, found)
    assert np.allclose(found["y"], 1 / (1 + np.exp(-1.0)))


def test_the_mixture_of_experts():
    """Each token by its own two experts, float64, a loop over tokens."""
    v = moe.random_values()
    x, router = v["x"].astype(np.float64), v["router"].astype(np.float64)
    gate, up, down = (v[n].astype(np.float64) for n in ("gate", "up", "down"))
    want, counts = np.zeros_like(x), np.zeros(moe.EXPERTS, int)
    for r, row in enumerate(x):
        e = np.exp(router @ row - (router @ row).max())
        for i in np.argsort(-e, kind="stable")[: moe.CHOSEN]:
            g = row @ gate[i]
            want[r] += e[i] / e.sum() * (g / (1 + np.exp(-g)) * (row @ up[i]) @ down[i])
            counts[i] += 1
    b = runtime().builder()
    moe.layer(b)
    with b.compile() as plan:
        made = run(plan, **v)
    assert np.abs(made["y"] - want).max() < 1e-5 and made["counts"].tolist() == counts.tolist()


def test_the_hybrid_layer(capsys):
    linear_attention.main()
    assert "same bits" in capsys.readouterr().out


def test_the_paged_batch(capsys):
    paged_batch.main(66)
    assert "alone" in capsys.readouterr().out
    assert t.BlockPool(paged_batch.BLOCKS).free_blocks == paged_batch.BLOCKS
