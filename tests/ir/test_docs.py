"""The row of docs/add-an-op.md is a row: it registers, infers, runs and refuses."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import numpy as np
import pytest

from lanewise.errors import GraphError
from lanewise.ir import opdef
from lanewise.ir.opdef import apply, ops
from lanewise.ir.values import value_type

PAGE = Path(__file__).parents[2] / "docs" / "add-an-op.md"


def test_the_example_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opdef, "_OPS", dict(ops()))
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    exec(textwrap.dedent(found[1]), {})
    row = ops()["clamp"]
    for sample in row.samples(np.random.default_rng(0)):
        attrs, types = apply("clamp", tuple(map(value_type, sample.args)), sample.attrs)
        assert tuple(map(value_type, row.ref(sample.args, attrs, types))) == types
    for bad in row.bad:
        with pytest.raises(GraphError) as caught:
            apply("clamp", bad.types, bad.attrs)
        assert caught.value.code == bad.code
