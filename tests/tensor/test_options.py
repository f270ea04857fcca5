"""Every option of every function that records, and of `compile`: another value is another identity
(another plan), or it is refused.  Found by walking signatures: a new option fails until it is here.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

from lanewise import tensor as t
from lanewise.errors import LanewiseError
from tests.tensor.calls import calls, recording_functions
from tests.tensor.support import runtime

FUNCTIONS = recording_functions()
OPERANDS = ("Tensor", "State", "Quantized", "Int4", "Builder")
# function -> option -> other values than those of `calls`
OTHERS: dict[str, dict[str, tuple[Any, ...]]] = {
    "attention": {"block": (48,), "scale": (0.5, "f"), "base": ("another",), "window": (3,),
                  "softcap": (1.5,)},
    "broadcast": {"shape": ((3, 4, 8),)},
    "cast": {"dtype": ("bf16", t.bf16, "f32")},
    "declare_sampling_scalars": {
        "options": (t.SamplingOptions(), t.SamplingOptions(temperature=1.0)), "prefix": ("p.",)},
    "int4": {"name": ("renamed",), "k": (16,), "n": (8,)},
    "kv_write": {"block": (32, 48)},
    "layer_norm": {"eps": (1e-6,)},
    "layer_state": {"index": (2,)},
    "linear_attention": {"decay": ("before",), "form": ("chunked",)},
    "min_p_mask": {"p": (0.2,)},
    "permute": {"axes": (0,)},
    "quantized": {"name": ("renamed",), "shape": ((6, 32), (5, 64))},
    "ragged_rows": {"rows": (5,), "reach": (128,)},
    "reshape": {"shape": ((2, 16), (32, 1))},
    "rms_norm": {"eps": (1e-6,)},
    "rope": {"rotary_dim": (6,), "base_name": ("g", None), "style": ("half",)},
    "route": {"experts": (4,)},
    "sample": {"options": (t.SamplingOptions(),), "prefix": ("again.", "p.")},
    "scale": {"name": ("g",)},
    "slice": {"axis": (1,), "start": (1, 0), "end": (3,)},
    "softmax": {"axis": (0,), "scale_name": ("g", None)},
    "top_k": {"k": (3,)},
    "top_k_mask": {"k": (3,)},
    "top_p_mask": {"p": (0.25,)},
    "transpose": {"axis_a": (1,), "axis_b": (0,)},
}  # fmt: skip


def options_of(name: str) -> list[str]:
    """The parameters of a function that are no operands."""
    found = inspect.signature(FUNCTIONS[name]).parameters.values()
    return [p.name for p in found if str(p.annotation).split(" | ")[0] not in OPERANDS]


def identity(name: str, changed: dict[str, Any]) -> str:
    """The identity of a program around one call, or "" where it was refused."""
    b = runtime().builder()
    b.scalar("another", "u32")
    b.scalar("g")
    values, given = calls(b)[name]
    b.output("always", b.input("something", t.f32, (2,)) * b.constant(2.0))
    if name == "permute":
        made = t.permute(values[0], *(changed.get("axes", (1, 0)) or (1, 0)))
    else:
        bound = inspect.signature(FUNCTIONS[name]).bind(*values, **given)
        bound.arguments.update(changed)
        made = FUNCTIONS[name](*bound.args, **bound.kwargs)
    for i, x in enumerate(made if isinstance(made, tuple) else (made,)):
        if isinstance(x, t.Quantized):
            x = t.quant_gather_rows(x, b.input("which", t.u32, (1,)))
        if isinstance(x, t.State) and x.version == 0:
            x = t.read_state(x)
        if isinstance(x, t.Tensor):
            b.output(f"y{i}", x)
    try:
        return str(b.identity())
    except LanewiseError as error:
        assert error.code.startswith(("graph.", "refused")), error
        return ""


def test_every_option_is_known_here():
    assert {n: sorted(o) for n in FUNCTIONS if (o := options_of(n))} == {
        n: sorted(o) for n, o in OTHERS.items()
    }


@pytest.mark.parametrize("name", OTHERS)
def test_another_value_is_another_identity_or_refused(name):
    first = identity(name, {})
    assert first and first == identity(name, {})
    seen = {first}
    for option, values in OTHERS[name].items():
        for value in values:
            changed = {option: (0, 1)} if name == "permute" else {option: value}
            made = identity(name, changed)
            if option == "dtype" and value is t.bf16:  # "bf16" again, by its row
                assert made in seen
                continue
            if (name, option, value) == ("slice", "start", 1):  # start == end
                assert made == "" or made == first
                continue
            assert made not in seen, (option, value)
            seen |= {made} - {""}


def test_numbers_of_a_policy_are_scalars_and_its_steps_are_not():
    """Of `SamplingOptions`: k, p and what is on are attributes; T and penalties change at will."""
    policy = t.SamplingOptions(temperature=1.0, top_k=4, top_p=0.5, min_p=0.1, presence=1.0)
    first = identity("sample", {"options": policy})
    others = {"temperature": 0.7, "repetition": 1.5, "presence": 0.5, "frequency": 0.25}
    structural = {"top_k": 3, "top_p": 0.25, "min_p": 0.2}
    assert set(others) | set(structural) == {f.name for f in dataclasses.fields(policy)}
    for name, value in others.items():
        other = dataclasses.replace(policy, **{name: value})
        assert identity("sample", {"options": other}) == first
        assert other.scalars("", 1, 4) != policy.scalars("", 1, 4)
    for name, value in structural.items():
        for changed in (value, 0):
            other = dataclasses.replace(policy, **{name: changed})
            assert identity("sample", {"options": other}) not in (first, "")
    for off in ({"temperature": 0.0}, {"presence": 0.0}):  # what it no longer reads is given
        assert identity("sample", {"options": dataclasses.replace(policy, **off)}) == ""


def test_every_compile_option_is_part_of_the_key():
    """Another value: another plan of the cache, or a refusal; the label is none; and what means
    the same is the same."""
    others: dict[str, tuple[Any, ...]] = {
        "activations": ("int8", "f32", "f16"), "hold": ("all", ["elementwise_chain"], ["no"]),
        "naive": (True, 1), "max_in_flight": (2, 0),
    }  # fmt: skip
    found = set(inspect.signature(t.Runtime.options).parameters) - {"self", "others"}
    assert found == set(others)
    assert set(inspect.signature(t.Runtime.compile).parameters) - {"self", "builder"} == {
        *found, "label", "others"}  # fmt: skip

    def record(b: t.Builder) -> None:
        b.output("y", t.silu(b.input("x", t.f32, (2, 8))))

    with t.Runtime("cpu", threads=1) as rt, t.PlanCache(rt) as cache:
        plans = {id(cache.compile(record))}
        refused = 0
        for name, values in others.items():
            for value in values:
                try:
                    plan = cache.compile(record, **{name: value})
                except LanewiseError as error:
                    assert error.code.startswith("usage."), error
                    refused += 1
                    continue
                assert id(plan) not in plans, (name, value)
                plans.add(id(plan))
        assert refused == 4
        count = len(cache)
        for same in ({"label": "other"}, {"activations": "int8x2"}, {"hold": ()}, {"hold": ""},
                     {"naive": False, "max_in_flight": 1}):  # fmt: skip
            assert id(cache.compile(record, **same)) in plans
        held = cache.compile(record, hold=("elementwise_chain",))
        assert held is cache.compile(record, hold="elementwise_chain")
        assert len(cache) == count


def test_what_a_port_says_of_its_live_rows_is_part_of_the_identity():
    def made(live: str) -> str:
        b = runtime().builder()
        b.scalar("n", "u32")
        b.scalar("m", "u32")
        b.output("y", t.abs(b.input("x", t.f32, (4,), live=live)))
        return str(b.identity())

    assert len({made(""), made("n"), made("m")}) == 3
