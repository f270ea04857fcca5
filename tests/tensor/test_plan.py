"""Plans: what they say of themselves, what a submission checks, closing, threads."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lanewise import tensor as t
from lanewise.errors import Refused, RunError, UsageError
from lanewise.quant.format import FORMATS
from lanewise.tensor import binding
from tests.tensor.support import compile, f32, outputs, products, run, runtime

RNG = np.random.default_rng(1)


def mlp(b: t.Builder) -> None:
    x = b.input("x", t.f32, (6, 64))
    gate, up = (t.linear(x, b.weight(n, t.f32, (96, 64))) for n in ("gate", "up"))
    down = b.weight("down", "q8_0", (32, 96))
    b.scalar("s", "f32")
    b.output("y", t.scale(t.linear(t.softmax(t.swiglu(gate, up)), down), "s"))


@pytest.fixture(scope="module")
def plan() -> t.Plan:
    return compile(mlp, activations="f32")


@pytest.fixture(scope="module")
def values() -> dict[str, np.ndarray]:
    encode = FORMATS["q8_0"].encode
    assert encode is not None
    return {"x": f32(RNG, 6, 64), "gate": f32(RNG, 96, 64), "up": f32(RNG, 96, 64),
            "down": encode(f32(RNG, 32, 96))}  # fmt: skip


def expected(v: dict[str, np.ndarray], s: float) -> np.ndarray:
    x, gate, up = (v[n].astype(np.float64) for n in ("x", "gate", "up"))
    decode = FORMATS["q8_0"].decode
    assert decode is not None
    g = x @ gate.T
    h = g / (1 + np.exp(-g)) * (x @ up.T)
    e = np.exp(h - h.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ decode(v["down"]).astype(np.float64).T * s


def test_an_mlp_end_to_end(plan, values):
    have = run(plan, **values, s=0.5)["y"]
    assert np.abs(have - expected(values, 0.5)).max() < 1e-5
    assert np.abs(run(plan, **values, s=2.0)["y"] - 4 * have).max() == 0
    assert plan.memory.unshared > 0 and plan.memory.allocated >= plan.memory.lower_bound > 0


def test_the_reference_runs_the_same_recording(values):
    reference = compile(mlp, "reference")
    assert np.abs(run(reference, **values, s=0.5)["y"] - expected(values, 0.5)).max() < 1e-6
    with pytest.raises(RunError, match="no plan of launches"):
        _ = reference.memory


def test_it_says_what_it_is(plan):
    kinds = [(p.name, p.kind, p.dtype, p.shape) for p in plan.ports]
    assert kinds == [
        ("x", "input", "f32", (6, 64)), ("gate", "weight", "f32", (96, 64)),
        ("up", "weight", "f32", (96, 64)), ("down", "weight", "q8_0", (32, 96)),
        ("y", "output", "f32", (6, 32)),
    ]  # fmt: skip
    assert plan.scalars == (t.ScalarDesc("s", "f32"),)
    ops = " ".join(s.op for s in plan.selections)
    assert "linear" in ops and "softmax" in ops and all(s.reason for s in plan.selections)
    assert plan.program.text.startswith("// Lanewise program") and "launches" in plan.explain()


def test_everything_wrong_is_found_at_once_and_changes_nothing(plan, values):
    good = run(plan, **values, s=1.0)["y"]
    y = np.full((6, 32), 7, np.float32)
    bad = {**values, "x": values["x"][:3], "gate": values["gate"].astype(np.float64),
           "up": np.asfortranarray(values["up"]), "s": "1", "z": y}  # fmt: skip
    del bad["down"]
    locked = y.copy()
    locked.flags.writeable = False
    with pytest.raises(Refused) as caught:
        plan.submit(bad, y=locked).wait()
    codes = sorted(e.code for e in caught.value.errors)
    assert codes == ["run.dtype", "run.extra", "run.missing", "run.readonly", "run.scalar",
                     "run.shape", "run.strides"]  # fmt: skip
    assert all(e.remedy for e in caught.value.errors)
    assert (run(plan, **values, s=1.0)["y"] == good).all()


@pytest.mark.parametrize("pair", [("y", "x"), ("y", "gate")])
def test_written_bytes_overlap_nothing(plan, values, pair):
    pool = np.zeros(96 * 64 + 64, np.float32)
    shapes = {p.name: p.shape for p in plan.ports}
    v = {**values, "s": 1.0, **outputs(plan)}
    for name in pair:  # one begins inside the other
        size = int(np.prod(shapes[name]))
        at = 64 if name == "y" else 0
        v[name] = pool[at : at + size].reshape(shapes[name])
    for again in (False, True):  # all new; then the two among known ones
        if again:
            plan.run({**values, "s": 1.0, **outputs(plan)})
        with pytest.raises(RunError) as caught:
            plan.run({**v, **({n: values[n] for n in values if n not in pair} if again else {})})
        assert caught.value.code == "run.overlap"


def test_inputs_may_share_bytes(plan, values):
    same = {**values, "up": values["gate"], "s": 1.0}
    assert np.abs(run(plan, **same)["y"] - expected(same, 1.0)).max() < 1e-5


def test_a_scalar_has_a_kind():
    def record(b: t.Builder) -> None:
        b.scalar("n", "u32")
        x = b.input("x", t.f32, (4, 3), live="n")
        b.output("y", t.exp(x))

    with compile(record) as made:
        x, y = f32(RNG, 4, 3), np.zeros((4, 3), np.float32)
        for wrong in (1.5, -1, 2**32, True, "3"):
            with pytest.raises(RunError, match=r"run.scalar"):
                made.run(x=x, y=y, n=wrong)
        with pytest.raises(RunError, match="the capacity is 4"):
            made.run(x=x, y=y, n=5)
        made.run(x=x, y=y, n=np.uint32(2))
        assert (y[2:] == 0).all() and np.allclose(y[:2], np.exp(x[:2]), rtol=1e-6)


def test_packed_weights_follow_the_object_and_repack(plan, values):
    v = {**values, "gate": values["gate"].copy(), "s": 1.0}
    first = run(plan, **v)["y"]
    v["gate"] *= -1
    assert (run(plan, **v)["y"] == first).all()  # the same object: not packed again
    plan.repack("gate")
    assert np.abs(run(plan, **v)["y"] - expected(v, 1.0)).max() < 1e-5
    v["gate"] = v["gate"] * -1
    assert (run(plan, **v)["y"] == first).all()


def test_one_submission_in_flight():
    x, record = np.eye(512, dtype=np.float32), products(512, 4)
    with compile(record) as one, compile(record, max_in_flight=2) as two:
        results = [np.zeros((512, 512), np.float32) for _ in range(2)]
        fences = [one.submit(x=x, y=y) for y in results]
        fences[0].wait()
        assert (results[0] == x).all() and fences[1].error is not None
        assert fences[1].error.code == "run.busy" and (results[1] == 0).all()
        with pytest.raises(RunError, match="not done"):
            one.submit(x=x, y=results[1]).wait(0)
        with pytest.raises(RunError, match=r"run.busy"):
            one.close()
        fences = [two.submit(x=2 * x, y=y) for y in (results[0], np.zeros_like(x))]
        for fence in fences:
            fence.wait()
        assert (results[0] == 32 * x).all()
        while not all(i.free for i in one._all):
            threading.Event().wait(0.01)


def test_what_breaks_off_a_submission_leaves_the_plan_free(plan, values):
    """Ctrl-C may come at any line: here at each of those that post."""

    class Broken(BaseException):
        pass

    posting = {"plan.py:start", "engines.py:post", "session.py:post", "session.py:_begin",
               "submitter.py:post", "submitter.py:next", "fence.py:begin"}  # fmt: skip
    v, out = {**values, "s": 1.0}, outputs(plan)
    plan.submit({**v, **out}).wait()
    seen, at = 0, 0

    def trace(frame: Any, event: str, arg: object) -> Any:
        nonlocal seen
        code = frame.f_code
        if event == "line" and f"{Path(code.co_filename).name}:{code.co_name}" in posting:
            seen += 1
            if seen == at:
                raise Broken
        return trace

    broken = 0
    for at in range(1, 1000):
        seen = 0
        out["y"][:] = 0
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            plan.submit({**v, **out})
        except Broken:
            broken += 1
        finally:
            sys.settrace(before)
        if seen < at:
            break
        end = time.monotonic() + 10
        while not all(i.free for i in plan._all) and time.monotonic() < end:
            time.sleep(0.001)
        plan.submit({**v, **out}).wait(10)
        assert np.abs(out["y"] - expected(v, 1.0)).max() < 1e-5
    assert broken > 10


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs signals")
def test_a_signal_breaks_off_the_wait_and_the_submission_goes_on():
    class Broken(Exception):
        pass

    def stop(*_: object) -> None:
        raise Broken

    x, y = np.eye(1024, dtype=np.float32) * 2, np.zeros((1024, 1024), np.float32)
    with compile(products(1024, 2)) as plan:
        plan.run(x=x, y=y)
        y[:] = 0
        before = signal.signal(signal.SIGALRM, stop)
        try:
            fence = plan.submit(x=x, y=y)
            with pytest.raises(Broken):
                signal.setitimer(signal.ITIMER_REAL, 0.005)
                while True:
                    fence.wait()
        finally:
            signal.signal(signal.SIGALRM, before)
        fence.wait()
        assert (y == 4 * x).all()


def test_a_plan_that_is_dropped_leaves_no_thread_and_does_not_keep_its_runtime_open():
    def submitters() -> set[threading.Thread]:
        return {x for x in threading.enumerate() if x.name == "lanewise-submit"}

    rt = t.Runtime("cpu", threads=1)
    b = rt.builder()
    b.output("y", t.exp(b.input("x", t.f32, (2,))))
    before, x = submitters(), np.zeros(2, np.float32)
    plan = b.compile()
    y = run(plan, x=x)["y"]
    (mine,) = submitters() - before
    assert (y == 1).all()
    fence = plan.submit(x=x, y=y)
    del plan  # a submission in flight ends as it should
    fence.wait()
    gc.collect()
    mine.join(10)
    assert not mine.is_alive()
    rt.close()


@pytest.fixture(params=[0, 16])
def looked_at(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bindings told apart as of a plan with many, and looked at each."""
    monkeypatch.setattr(binding, "_SHORT", request.param)


def test_bindings_in_another_order_or_swapped_are_seen(plan, values, looked_at):
    v = {**values, "s": 1.0}
    first = run(plan, **v)["y"]
    assert (run(plan, **dict(reversed(v.items())))["y"] == first).all()
    swapped = {**v, "gate": v["up"], "up": v["gate"]}
    assert np.abs(run(plan, **swapped)["y"] - expected(swapped, 1.0)).max() < 1e-5
    assert (run(plan, **v)["y"] == first).all()
    for s in (2.0, 3.0):
        assert np.abs(run(plan, **{**v, "s": s})["y"] - expected(v, s)).max() < 1e-5


def test_shared_bindings_are_looked_at_once_and_never_stale(plan, values, looked_at):
    v, w = values, {n: values[n] for n in ("gate", "up", "down")}
    shared, y = t.Bindings(w), np.zeros((6, 32), np.float32)
    assert dict(shared) == w and len(shared) == 3 and "gate" in repr(shared)
    assert t.Bindings(shared, x=v["x"])["x"] is v["x"]

    def result(bindings: Any, **more: Any) -> np.ndarray:
        y[:] = 0
        plan.submit(bindings, y=y, **more).wait(10)
        return y.copy()

    first = result(shared, x=v["x"], s=1.0)
    assert np.abs(first - expected(v, 1.0)).max() < 1e-5
    assert plan._all[0].fixed is shared
    for s in (1.0, 2.0):  # only the rest is looked at
        x = v["x"] + s
        assert np.abs(result(shared, x=x, s=s) - expected({**v, "x": x}, s)).max() < 1e-5
    other = {**w, "gate": w["gate"] * 2}
    both = {**v, **other}
    for bindings in (other, t.Bindings(other)):  # somebody else's weights come between
        assert np.abs(result(bindings, x=v["x"], s=1.0) - expected(both, 1.0)).max() < 1e-5
        assert (result(shared, x=v["x"], s=1.0) == first).all()
    assert np.abs(result(shared, x=v["x"], s=1.0, gate=other["gate"])
                  - expected(both, 1.0)).max() < 1e-5  # fmt: skip
    assert (result(shared, x=v["x"], s=1.0) == first).all()
    w["gate"][:] *= 2
    plan.repack()
    assert np.abs(result(shared, x=v["x"], s=1.0) - expected(both, 1.0)).max() < 1e-5
    w["gate"][:] /= 2
    plan.repack("gate")
    assert (result(shared, x=v["x"], s=1.0) == first).all()
    with pytest.raises(RunError, match=r"(?s)'x' is not bound.*run.missing"):
        result(shared, s=1.0)
    with pytest.raises(RunError, match=r"run.extra"):
        result(shared, x=v["x"], s=1.0, z=1)
    with pytest.raises(RunError, match=r"run.overlap"):
        plan.submit(shared, x=v["x"], s=1.0, y=v["x"].reshape(-1)[:192].reshape(6, 32)).wait()
    assert (result(shared, x=v["x"], s=1.0) == first).all()


def test_shared_bindings_see_a_buffer_that_was_closed():
    def record(b: t.Builder) -> None:
        b.output("y", b.input("x", t.f32, (4,)) + b.input("z", t.f32, (4,)))

    with compile(record) as made:
        z = t.Runtime("cpu").buffer(t.f32, (4,))
        shared, x, y = t.Bindings({"z": z}), np.ones(4, np.float32), np.zeros(4, np.float32)
        for _ in range(2):
            made.run(shared, x=x, y=y)
        assert (y == 1).all()
        z.close()
        with pytest.raises(RunError, match=r"run.closed"):
            made.run(shared, x=x, y=y)


def test_a_binding_that_failed_half_way_is_bound_anew(plan, values, monkeypatch, looked_at):
    v = {**values, "s": 1.0}
    first = run(plan, **v)["y"]
    engine, other = plan._all[0].engine, {**v, "gate": v["gate"] * 2, "down": v["down"] * 2}
    bind = type(engine).bind

    def broken(name: str, bound: Any) -> None:
        if name == "down":
            raise RunError("run.memory", "no more", remedy="a test")
        bind(engine, name, bound)

    monkeypatch.setattr(engine, "bind", broken)
    with pytest.raises(RunError, match=r"run.memory"):
        run(plan, **other)
    monkeypatch.undo()
    assert (run(plan, **v)["y"] == first).all()


def test_an_array_that_changes_its_shape_in_place_is_seen(plan, values):
    v = {**values, "x": values["x"].copy(), "s": 1.0}
    run(plan, **v)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        v["x"].shape = (64, 6)
    with pytest.raises(RunError, match=r"run.shape"):
        plan.run(v, **outputs(plan))


@pytest.mark.parametrize("kept", [False, True], ids=["array", "buffer"])
def test_an_array_whose_dtype_or_flags_change_in_place_is_seen(plan, values, looked_at, kept):
    buffers = {n: runtime().buffer(t.f32, s) for n, s in (("x", (6, 64)), ("y", (6, 32)))}
    x, y = buffers["x"].array, buffers["y"].array
    x[...] = values["x"]
    v = {**values, "s": 1.0, **(buffers if kept else {"x": x, "y": y})}
    plan.run(v)
    first = y.copy()

    def refused(code: str) -> None:
        for call in (plan.run, lambda g: plan.submit(g).wait()):
            with pytest.raises(RunError, match=rf"run.{code}"):
                call(v)
        assert (y == first).all()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x.dtype = np.int32
        x += 1 << 23  # other numbers, if they were read
        refused("dtype")
        x -= 1 << 23
        x.dtype = np.float32
    y.flags.writeable = False
    x *= 2
    refused("readonly")
    x /= 2
    x.flags.writeable, y.flags.writeable = False, True  # what is read may be read-only
    y[...] = 0
    plan.run(v)
    assert (y == first).all()


def test_bindings_are_made_as_a_dictionary_is():
    x = np.ones(3)
    assert dict(t.Bindings(x=x)) == dict(t.Bindings({"x": x})) == {"x": x}
    assert len(t.Bindings()) == 0 and t.Bindings({"x": 1}, x=x)["x"] is x
    for wrong in ([x], None, 5):
        with pytest.raises(UsageError, match=r"(?s)usage.option.*t.Bindings\(x=xs\)") as caught:
            t.Bindings(wrong)  # type: ignore[arg-type]
        assert caught.value.place.startswith(__file__)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_process_submits_with_a_thread_of_its_own():
    code = """
import os, numpy as np
from lanewise import tensor as t
rt = t.Runtime("cpu", threads=2)
b = rt.builder()
b.output("y", t.exp(b.input("x", t.f32, (64,))))
plan = b.compile()
x, y = np.zeros(64, np.float32), np.zeros(64, np.float32)
plan.submit(x=x, y=y).wait()
child = os.fork()
if child == 0:
    y[:] = 0
    plan.submit(x=x, y=y).wait(20)
    os._exit(0 if (y == 1).all() else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True,
                          text=True, timeout=120, env=env)  # fmt: skip
    assert done.stdout.strip() == "0", done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_submission_in_flight_ends_in_a_child_process_and_the_plan_is_free():
    code = """
import os, signal, time, numpy as np
from lanewise import tensor as t
from lanewise.errors import RunError
rt = t.Runtime("cpu", threads=1)
b = rt.builder()
n = 2048
b.output("y", t.matmul(b.input("x", t.f32, (n, n)), b.input("w", t.f32, (n, n))))
plan = b.compile(label="slow")
x, w, y = np.ones((n, n), np.float32), np.ones((n, n), np.float32), np.zeros((n, n), np.float32)
fence = plan.submit(x=x, w=w, y=y)
time.sleep(0.02)
assert not fence.done, "too fast for this test"
child = os.fork()
if child == 0:
    signal.alarm(60)
    try:
        fence.wait()
    except RunError as error:
        assert error.code == "run.forked" and error.remedy and "slow" in error.place, error
        assert fence.done
        plan.submit(x=x, w=w, y=y).wait(50)
        assert (y == n).all()
        plan.run(x=x, w=w, y=y)
        plan.close()
        os._exit(0)
    os._exit(3)
fence.wait()
assert (y == n).all()
plan.close()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True,
                          text=True, timeout=120, env=env)  # fmt: skip
    assert done.stdout.strip() == "0", done.stderr


def test_closing():
    rt = t.Runtime("cpu", threads=1)
    b = rt.builder()
    b.output("y", t.exp(b.input("x", t.f32, (2,))))
    plan = b.compile(label="small")
    with pytest.raises(RunError, match="small"):
        rt.close()
    plan.close()
    plan.close()
    fence = plan.submit(x=np.zeros(2, np.float32), y=np.zeros(2, np.float32))
    assert fence.done
    with pytest.raises(RunError, match=r"run.closed"):
        fence.wait()
    rt.close()
    rt.close()
    with pytest.raises(RunError, match=r"run.closed"):
        rt.builder()
    with pytest.raises(UsageError):
        t.Runtime("abacus")
