"""Ops with a function of their own, casts and float products: the same bits on any number of
threads and instruction set."""

from __future__ import annotations

import numpy as np
import pytest

from lanewise.ir.opdef import opdef
from lanewise.kernels.calls import CALLS
from lanewise.targets.cpu import CpuTarget, cpu_target
from tests.native import DEFAULT, Native, same_bits
from tests.plan.test_ops_on_target import sample_graph


@pytest.mark.parametrize("name", [*sorted(CALLS), "cast", "linear", "matmul"])
def test_threads_and_instruction_sets_give_equal_bits(name):
    graph, values, _ = sample_graph(opdef(name), np.random.default_rng(3))
    plain = CpuTarget("scalar", cpu_target().arch)
    made = [
        Native(graph, values, DEFAULT, threads, target).run(values)
        for threads, target in ((1, None), (3, None), (2, plain))
    ]
    for other in made[1:]:
        assert all(same_bits(other[key], value) for key, value in made[0].items()), name
