"""The tree keeps the house rules; and the rules notice what breaks them."""

from __future__ import annotations

import tomllib

from tests.house import rules


def test_the_tree_keeps_them():
    assert rules.broken() == []


def test_they_notice():
    assert list(rules.sizes("x" * 101)) == [(1, "101 columns, at most 100")]
    assert list(rules.sizes("\n" * 501)) == [(501, "501 lines, at most 500")]
    long = '"""Doc."""\ndef f():\n' + "    pass\n" * 60
    assert list(rules.python(long)) == [(2, "f has 61 lines, at most 60")]
    assert list(rules.python("x = 1")) == [(1, "the file does not open with a docstring")]
    body = (
        "// Doc.\nstatic void g(int);\nstatic void f(int a,\n    int b) {\n" + "  a;\n" * 60 + "}\n"
    )
    assert list(rules.native(body)) == [(3, "a function of 63 lines, at most 60")]
    assert list(rules.native("namespace x {\n" + "int a(1);\n" * 99 + "}\n")) == [
        (1, "the file does not open with a comment")
    ]


def test_files_are_found():
    names = {p.name for p in rules.files(rules.PYTHON | rules.NATIVE)}
    assert {"errors.py", "rules.py", "vec.h"} <= names


def test_the_layers_are_the_designs():
    """The contract that CI checks names every package, in the order of docs/ARCHITECTURE.md."""
    config = tomllib.loads((rules.ROOT / "pyproject.toml").read_text())
    (contract,) = config["tool"]["importlinter"]["contracts"]
    assert contract["exhaustive"] is True
    order = [layer.replace("(", "").replace(")", "") for layer in contract["layers"]]
    flow = " > ".join(layer.replace(" | ", "|") for layer in order)
    text = " ".join((rules.ROOT / "docs" / "ARCHITECTURE.md").read_text().split())
    assert flow in text
