"""Every name of the seed has a counterpart that exists, and the page says so."""

from __future__ import annotations

import inspect

import pytest

from lanewise import tensor as t
from tests.house.rules import ROOT
from tests.tensor.counterparts import PAGE, SEED, TABLE, names_in, page

GAPS = (ROOT / "tests" / "gaps" / "tensor.txt").read_text().split()


def test_the_table_is_the_seeds_list():
    names = SEED.read_text().split()
    assert names == sorted(set(names))
    assert sorted({*TABLE, *GAPS}) == names and not set(TABLE) & set(GAPS)


def test_nothing_is_missing():
    """The list of gaps may only shrink: it is empty, and stays so."""
    assert GAPS == []


@pytest.mark.parametrize("name", sorted({n for cell in TABLE.values() for n in names_in(cell)}))
def test_a_counterpart_exists(name):
    path, _, argument = name.partition("(")
    value: object = t
    for part in path.split("."):
        fields = getattr(value, "__dataclass_fields__", {})
        value = fields[part] if part in fields else getattr(value, part)
    if argument:
        known = inspect.signature(value).parameters  # type: ignore[arg-type]
        assert argument.rstrip("=)") in known


def test_the_page_is_the_tables():
    assert PAGE.read_text() == page()


def test_public_names_are_sorted_documented_and_there():
    kinds = [[n for n in t.__all__ if test(n)] for test in (
        lambda n: n.isupper() and len(n) > 3, lambda n: n[0].isupper() and not n.isupper(),
        lambda n: n[0].islower())]  # fmt: skip
    assert t.__all__ == [n for kind in kinds for n in sorted(kind)]
    for name in t.__all__:
        value = getattr(t, name)
        if callable(value) and name != "Shape":
            assert inspect.getdoc(value), name
