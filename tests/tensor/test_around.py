"""Identity, cache, buckets, pool, stream: what stands around plans."""

from __future__ import annotations

import threading
from dataclasses import fields

import numpy as np
import pytest

from lanewise import tensor as t
from lanewise.errors import GraphError, LanewiseError, RunError, UsageError
from lanewise.ir.builder import GraphBuilder
from lanewise.ir.graph import Type
from lanewise.ir.opdef import OpDef, apply, ops
from lanewise.ir.values import value_type
from lanewise.pipeline import Options
from lanewise.tensor.identity import digest, node_parts
from tests.tensor.support import f32, run, runtime

# The seed's own numbers: seed 1, steps 0 to 7.
PINNED = (.3381666, .5665615, .7457817, .9710027, .44435918, .44426465, .76289433, .87734866)


def test_the_stream_is_pinned():
    stream = t.Stream(1)
    draws = [stream.draw(i) for i in range(8)]
    assert np.abs(np.array(draws) - PINNED).max() < 5e-8
    assert all((d * 2**24).is_integer() for d in draws)


def test_draws_are_never_one_and_are_spread():
    """2^21 steps, by the same recurrence in NumPy."""
    step = np.arange(2**21, dtype=np.uint64)
    with np.errstate(over="ignore"):
        z = np.uint64(7) + step * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    draws = ((z ^ (z >> np.uint64(31))) >> np.uint64(40)) / np.float32(2**24)
    stream = t.Stream(7)
    for i in (0, 1, 12345, 2**21 - 1):
        assert stream.draw(i) == draws[i]
    assert draws.max() < 1 and draws.astype(np.float32).max() < 1
    counts = np.bincount((draws * 64).astype(int), minlength=64)
    assert np.abs(counts / 2**15 - 1).max() < 0.03


def test_sequences_have_streams_of_their_own():
    streams = [t.Stream.derive(5, s) for s in range(100)]
    assert len({s.seed for s in streams} | {5}) == 101
    assert len({round(s.draw(0) * 2**24) for s in streams}) > 98


def test_buckets():
    buckets = t.Buckets([512, 128, 256])
    assert buckets.sizes == (128, 256, 512)
    assert [buckets.for_(n) for n in (1, 128, 129, 512)] == [128, 128, 256, 512]
    for wrong in ([], [0, 4], [-1], [4, 4], [2.5], [True]):
        with pytest.raises(UsageError, match=r"usage.buckets"):
            t.Buckets(wrong)
    with pytest.raises(UsageError, match="largest size is 512"):
        buckets.for_(513)
    with pytest.raises(AttributeError):
        buckets.sizes = (1,)  # type: ignore[misc]


def test_the_pool_grows_appends_or_fails_whole():
    pool = t.BlockPool(4, 64)
    a = pool.grow(None, 65)
    assert len(a) == 2 and pool.grow(a, 128) == a
    b = pool.grow([], 64)
    with pytest.raises(RunError, match=r"run.pool_empty"):
        pool.grow(b, 64 * 4)
    assert pool.free_blocks == 1
    longer = pool.grow(a, 129)
    assert longer[:2] == a and len({*longer, *b}) == 4
    for wrong in ([b[0], b[0]], [99], [b[0], 99], [-1]):
        with pytest.raises(UsageError, match=r"usage.pool"):
            pool.free(wrong)
    assert pool.free_blocks == 0  # nothing of a refused set was freed
    pool.free(b)
    with pytest.raises(UsageError, match="not held"):
        pool.free(b)
    shared = pool.share(longer)
    pool.free(longer)
    assert pool.free_blocks == 1
    pool.free(shared)
    assert pool.free_blocks == 4
    for wrong in (0, -1, True, 1.0):
        with pytest.raises(UsageError):
            t.BlockPool(wrong, 64)  # type: ignore[arg-type]


def test_the_cache_compiles_once_for_all_threads():
    calls = []

    def record(b: t.Builder) -> None:
        calls.append(1)
        b.output("y", t.square(b.input("x", t.f32, (3,))))

    with t.Runtime("cpu", threads=1) as rt, t.PlanCache(rt) as cache:
        plans: list[t.Plan] = []
        threads = [
            threading.Thread(target=lambda: plans.append(cache.compile(record, key="a")))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({id(p) for p in plans}) == 1 and len(calls) == 1
        by_graph = cache.compile(record, label="other label")
        assert by_graph is cache.compile(record) and by_graph is not plans[0] and len(calls) == 3
        assert cache.compile(record, naive=True) is not by_graph
        for _ in range(2):
            with pytest.raises(GraphError, match=r"graph.shape"):
                cache.compile(lambda b: t.reshape(b.input("x", t.f32, (3,)), (4,)), key="bad")
        assert len(cache) == 3
        x = np.arange(3, dtype=np.float32)
        assert (run(by_graph, x=x)["y"] == x * x).all()
    with pytest.raises(RunError, match=r"run.closed"):
        cache.compile(record)


# -- identity --------------------------------------------------------------------------------------


def _identity(record) -> str:
    b = runtime().builder("any")
    record(b)
    return str(b.identity())


def base(b: t.Builder, *, x="x", dtype="f32", shape=(2, 4), value=1.0, y="y", s="s",
         kind="f32", op=t.add, weight=False, state=False):  # fmt: skip
    a = b.weight(x, dtype, shape) if weight else b.input(x, dtype, shape)
    b.scalar(s, kind)
    if state:
        b.state("extra", "f32", (2, 2))
    c = b.constant(np.full(shape, value, np.float32))
    b.output(y, op(t.cast(a, "f32"), c))


def test_equal_recordings_are_equal_and_names_of_graphs_do_not_count():
    assert _identity(base) == _identity(base)
    assert len(_identity(base)) == 64


@pytest.mark.parametrize("change", [
    {"x": "z"}, {"dtype": "f16"}, {"shape": (4, 2)}, {"value": 2.0}, {"y": "out"}, {"s": "r"},
    {"kind": "u32"}, {"op": t.sub}, {"op": lambda a, b: t.add(b, a)}, {"weight": True},
    {"state": True},
])  # fmt: skip
def test_every_part_of_a_recording_counts(change):
    assert _identity(lambda b: base(b, **change)) != _identity(base)


def _variants(op: OpDef, attr: str, value, types):
    """Other legal values of an attribute."""
    for other in (1, 2, 3, 4, 5, 7, 32, 64, 0.25, 0.5, 0.75, 1.5, 1e-3, "half", "interleaved",
                  "f64", "f32", "f16", "before", "after", "int8", "int8x2", (0, 1), (1, 0), (0, 2),
                  (2, 1, 0), (0, 1, 2), (1, 2), (2, 2), (1, 1), (4, 3), (1, 5), (2, 21),
                  (4,), (8,), (2, 3, 5), (0,), (1,), (2,), (1, 2, 3)):
        if other == value:
            continue
        try:
            apply(op.name, types, {**op.attrs, **_first(op)[1], attr: other})
        except LanewiseError:
            continue
        yield other


def _first(op: OpDef):
    for sample in op.samples(np.random.default_rng(0)):
        return tuple(value_type(v) for v in sample.args), dict(sample.attrs)
    raise AssertionError(op.name)


WITH_ATTRS = sorted(o.name for o in ops().values() if o.attrs and o.form not in ("root", "fused"))


@pytest.mark.parametrize("name", WITH_ATTRS)
def test_every_option_of_every_op_changes_the_identity(name):
    """Found by walking the registry: a new attribute is tested when it is written."""
    op = ops()[name]

    def of(attrs) -> str:
        b = GraphBuilder("g")
        refs = [b.root("input", f"x{i}", ty) for i, ty in enumerate(types)]
        for i, ref in enumerate(b.apply_multi(name, *refs, **attrs)):
            b.output(f"y{i}", ref)
        return digest(node_parts(b.finish()))

    types, attrs = _first(op)
    for attr, default in op.attrs.items():
        tried = types
        value = attrs.get(attr, default)
        if name in ("slice", "permute", "broadcast", "reshape", "transpose"):
            tried = (Type("f32", (2, 2, 1)),)
            attrs = {"slice": {"starts": (0, 0, 0), "stops": (2, 2, 1)},
                     "permute": {"axes": (0, 1, 2)}, "broadcast": {"shape": (2, 2, 1)},
                     "reshape": {"shape": (2, 2, 1)}, "transpose": {"axes": (0, 1)}}[name]
            value = attrs[attr]
            others = {"slice": {"starts": (1, 0, 0), "stops": (1, 2, 1)},
                      "permute": {"axes": (1, 0, 2)}, "broadcast": {"shape": (2, 2, 3)},
                      "reshape": {"shape": (4, 1)}, "transpose": {"axes": (0, 2)}}[name]
            found = [others[attr]]
            types = tried
        elif (name, attr) in (("int4_matmul", "n"), ("rope", "rotary")):  # operands' sizes say it
            with pytest.raises(GraphError):
                apply(name, types, {**attrs, attr: attrs[attr] + 400})
            continue
        else:
            found = list(_variants(op, attr, value, types))
        assert found, f"{name}.{attr}: no other legal value is known to this test"
        for other in found:
            assert of({**attrs, attr: other}) != of({**attrs, attr: value}), (attr, other)


def test_every_compile_option_is_part_of_the_key():
    """What decides the program is in `Options`; the cache's key holds every option by name."""
    assert {f.name for f in fields(Options)} - {"timed"} == {"activations", "hold", "naive"}
    rng = np.random.default_rng(0)

    def record(b: t.Builder) -> None:
        b.output("y", t.silu(b.input("x", t.f32, (2, 8))))

    with t.Runtime("cpu", threads=1) as rt, t.PlanCache(rt) as cache:
        plans = [cache.compile(record, **o) for o in (
            {}, {"activations": "f32"}, {"hold": ("elementwise_chain",)}, {"naive": True},
            {"max_in_flight": 2},
        )]  # fmt: skip
        assert len({id(p) for p in plans}) == 5
        x = f32(rng, 2, 8)
        results = [run(p, x=x)["y"] for p in plans]
        assert all((r == results[0]).all() for r in results)
        with pytest.raises(UsageError):
            cache.compile(record, activations="f8")
        with pytest.raises(UsageError):
            cache.compile(record, max_in_flight=0)
