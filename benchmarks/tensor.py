"""What the tensor layer itself costs: submissions, recording to program, and a decode step.

    python benchmarks/tensor.py

Prints three tables: microseconds of a submission of a small plan with one binding changed each
time (target: 20 or less on a quiet machine); seconds of Python from the first op to the program's
text for steps of 8 to 64 layers (linear; 32 layers: 3 s or less); and a decode step of a synthetic
model (8 layers of width 1024 in q4_0) written with the Builder against the lane's own, run by
turns on the same weights (target: 0.95 of its speed or more).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import lanewise as lw
from examples.transformer import Config, step
from lanewise import tensor as t
from lanewise.lane.sampling import Sampling
from lanewise.pipeline import Options, compile_forms


def best(run: Callable[[int], object], count: int = 2000, rounds: int = 7) -> float:
    """The least seconds of one call, over rounds."""
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for i in range(count):
            run(i)
        found.append((time.perf_counter() - begin) / count)
    return min(found)


def submissions() -> None:
    rt = t.Runtime("cpu", threads=1)
    b = rt.builder()
    b.scalar("s")
    w = b.weight("w", t.f32, (64, 64))
    b.output("y", t.scale(t.linear(b.input("x", t.f32, (1, 64)), w), "s"))
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal((1, 64)).astype(np.float32) for _ in range(2)]
    fixed = {"w": rng.standard_normal((64, 64)).astype(np.float32), "s": 1.0,
             "y": np.zeros((1, 64), np.float32)}  # fmt: skip
    with b.compile() as plan:
        session = plan._all[0].engine.session
        found = {
            "run": best(lambda i: plan.run(fixed, x=xs[i & 1])),
            "submit, until it returns": returned(plan, fixed, xs),
            "submit and wait": best(lambda i: plan.submit(fixed, x=xs[i & 1]).wait()),
            "of which the program itself": best(lambda i: session.run("main", {"s": 1.0})),
        }
    print("a small plan, one binding changed        us")
    for name, seconds in found.items():
        print(f"  {name:<34} {seconds * 1e6:6.1f}")


def returned(plan: t.Plan, fixed: dict[str, Any], xs: list[Any], count: int = 2000) -> float:
    """The median of the seconds that `submit` keeps its caller, as long as nothing is in flight."""
    found = []
    for i in range(count):
        begin = time.perf_counter()
        fence = plan.submit(fixed, x=xs[i & 1])
        found.append(time.perf_counter() - begin)
        fence.wait()
    return statistics.median(found)


def growth() -> None:
    rt = t.Runtime("cpu", threads=1)
    print("layers  nodes  record s  lower s  passes to text s  ms per node")
    for layers in (8, 16, 32, 64):
        c = replace(Config(), layers=layers)
        begin = time.perf_counter()
        b = rt.builder()
        step(b, c, 1)
        recorded = time.perf_counter()
        graph = b.graph()
        b.identity()
        lowered = time.perf_counter()
        compile_forms({"main": graph}, Options())
        end = time.perf_counter()
        print(f"{layers:6} {len(graph.nodes):6} {recorded - begin:9.3f} {lowered - recorded:8.3f} "
              f"{end - lowered:17.3f} {(end - begin) * 1e3 / len(graph.nodes):12.3f}")


@dataclass(frozen=True)
class Model:
    """A model without sense: random codes of q4_0, gains of 1."""

    layers: int = 8
    width: int = 1024
    ffn: int = 2816
    heads: int = 16
    kv_heads: int = 4
    head: int = 64
    vocab: int = 8192
    context: int = 1024
    eps: float = 1e-5

    def matrices(self) -> dict[str, tuple[int, int]]:
        q, kv, w = self.heads * self.head, self.kv_heads * self.head, self.width
        layer = {"attn_q": (q, w), "attn_k": (kv, w), "attn_v": (kv, w), "attn_output": (w, q),
                 "ffn_gate": (self.ffn, w), "ffn_up": (self.ffn, w), "ffn_down": (w, self.ffn)}
        named = {f"blk.{i}.{n}.weight": s for i in range(self.layers) for n, s in layer.items()}
        return {"token_embd.weight": (self.vocab, w), **named, "output.weight": (self.vocab, w)}

    def gains(self) -> list[str]:
        each = ("attn_norm", "ffn_norm")
        return [f"blk.{i}.{n}.weight" for i in range(self.layers) for n in each] + [
            "output_norm.weight"
        ]

    def weights(self) -> dict[str, Any]:
        """By the names of a checkpoint; matrices as rows of blocks: an f16 scale, 32 codes."""
        rng = np.random.default_rng(0)
        made: dict[str, Any] = {n: np.ones(self.width, np.float32) for n in self.gains()}
        for name, (n, k) in self.matrices().items():
            blocks = rng.integers(0, 256, (n, k // 32, 18), dtype=np.uint8)
            blocks[..., :2] = np.array([k**-0.5 / 4], np.float16).view(np.uint8)
            made[name] = blocks.reshape(n, -1)
        return made

    def write(self, path: Path, weights: dict[str, Any]) -> None:
        from gguf import GGMLQuantizationType, GGUFWriter

        w = GGUFWriter(path, "llama")
        w.add_block_count(self.layers)
        w.add_context_length(self.context)
        w.add_embedding_length(self.width)
        w.add_feed_forward_length(self.ffn)
        w.add_head_count(self.heads)
        w.add_head_count_kv(self.kv_heads)
        w.add_layer_norm_rms_eps(self.eps)
        for name, x in weights.items():
            kind = GGMLQuantizationType.Q4_0 if x.dtype == np.uint8 else None
            w.add_tensor(name, x, raw_dtype=kind)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()

    def record(self, b: t.Builder) -> None:
        """The decode step, by hand."""
        w = {n: b.weight(n, "q4_0", s) for n, s in self.matrices().items()}
        w |= {n: b.weight(n, t.f32, (self.width,)) for n in self.gains()}
        tokens, slots, positions = (
            b.input(n, t.u32, (1,)) for n in ("tokens", "slots", "positions")
        )
        pages = b.input("pages", t.u32, (1, self.context // 64))
        table = b.input("rope", t.f32, (self.context, self.head))
        where: dict[str, Any] = {"slots": slots, "positions": positions}
        k, v = (
            b.state(n, t.f16, (self.layers, self.context, self.kv_heads, self.head)) for n in "kv"
        )
        x = t.gather_rows(w["token_embd.weight"], tokens)
        for i in range(self.layers):
            p = {n.split(".")[2]: m for n, m in w.items() if n.startswith(f"blk.{i}.")}
            h = t.rms_norm(x, p["attn_norm"], self.eps)
            q, keys, values = (
                t.reshape(t.linear(h, p[f"attn_{n}"]), (1, count, self.head))
                for n, count in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads))
            )
            q, keys = (t.rope(y, self.head, None, positions, table=table) for y in (q, keys))
            keys = t.kv_write(t.layer_state(k, i), keys, table=pages, **where)
            values = t.kv_write(t.layer_state(v, i), values, table=pages, **where)
            y = t.attention(q, keys, values, pages=pages, **where)
            x = x + t.linear(t.reshape(y, (1, self.heads * self.head)), p["attn_output"])
            h = t.rms_norm(x, p["ffn_norm"], self.eps)
            x = x + t.linear(t.swiglu(t.linear(h, p["ffn_gate"]), t.linear(h, p["ffn_up"])),
                             p["ffn_down"])  # fmt: skip
        logits = t.linear(t.rms_norm(x, w["output_norm.weight"], self.eps), w["output.weight"])
        b.output("logits", logits)
        kinds = {"temperature": t.f32, "top_k": t.u32, "top_p": t.f32, "min_p": t.f32,
                 "draws": t.f32}  # fmt: skip
        options = [b.input(n, kind, (1,)) for n, kind in kinds.items()]
        b.output("next", t.sample_rows(logits, *options))

    def arrays(self) -> dict[str, Any]:
        """All that a step binds besides the weights; temperature 0."""
        one = {"tokens": 1, "slots": 0, "positions": 0, "top_k": 0, "next": 0}
        real = {"temperature": 0, "top_p": 1, "min_p": 0, "draws": 0}
        shape = (self.layers, self.context, self.kv_heads, self.head)
        return {
            **{n: np.full(1, x, np.uint32) for n, x in one.items()},
            **{n: np.full(1, x, np.float32) for n, x in real.items()},
            **{n: np.zeros(shape, np.float16) for n in "kv"},
            "pages": np.arange(self.context // 64, dtype=np.uint32)[None],
            "rope": t.rope_table(self.context, self.head),
            "logits": np.zeros((1, self.vocab), np.float32),
        }


def decode(steps: int = 120) -> None:
    """The lane's next token, and a submission of the step by hand, by turns."""
    m = Model()
    weights, mine = m.weights(), m.arrays()
    b = t.Runtime("cpu", threads=1).builder("decode")
    m.record(b)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "random.gguf")
        m.write(path, weights)
        options: dict[str, Any] = {"context": m.context, "max_chunk": 1, "threads": 1}
        lane = lw.compile(path, speculate="off", **options)
        with lane, b.compile() as plan:
            bound = t.Bindings(weights)
            runner, sampling, ids = lane._runner, Sampling(temperature=0), [1]
            took: dict[str, list[float]] = {"lane": [], "builder": []}
            same = True
            for i in range(steps):
                begin = time.perf_counter()
                token = runner.next_token(ids, sampling, 0.0)
                middle = time.perf_counter()
                mine["tokens"][0], mine["positions"][0] = ids[-1], i
                plan.run(bound, **mine)
                took["lane"].append(middle - begin)
                took["builder"].append(time.perf_counter() - middle)
                same &= bool((mine["logits"] == runner._decode.logits).all())
                same &= token == int(mine["next"][0])
                ids.append(token)
    lane_s, ours = (statistics.median(x[10:]) for x in took.values())
    print("a decode step                       median ms   least ms")
    for name, x in took.items():
        print(f"  {name:<32} {statistics.median(x[10:]) * 1e3:9.3f} {min(x) * 1e3:10.3f}")
    print(f"  lane / builder {lane_s / ours:.3f} (median), "
          f"{min(took['lane']) / min(took['builder']):.3f} (least); "
          f"logits and tokens {'equal' if same else 'DIFFER'}")


if __name__ == "__main__":
    submissions()
    growth()
    decode()
