"""The documents are true where a program can tell: links, files, options and variables exist."""

from __future__ import annotations

import re

import pytest

from tests.house.rules import ROOT

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)", page.read_text())
    missing = [x for x in links if "://" not in x and not (page.parent / x).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_that_are_named_exist(page):
    """`dir/file.py` in backquotes is a file of the tree, from its root or the package's."""
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|md|h|cpp))`", page.read_text())
    roots = (ROOT, ROOT / "src" / "lanewise")
    assert [x for x in named if not any((root / x).exists() for root in roots)] == []


def test_the_first_command_is_the_transcripts():
    """So that whoever types it sees what the page shows: the most likely tokens, and an end."""
    text = (ROOT / "README.md").read_text()
    first = re.search(r"\n    pip install \.\n    (lanewise .+)\n", text)
    shown = re.search(r"<!-- transcript -->\n```console\n\$ (lanewise .+)\n", text)
    assert first and shown and first[1] == shown[1] and "--temp 0" in shown[1]
    assert shown[1] in (ROOT / "src/lanewise/cli/app.py").read_text()  # and in --help


def test_the_readme_names_every_command_and_option():
    import click

    from lanewise.cli import app
    from lanewise.cli.app import COMMANDS

    text = (ROOT / "README.md").read_text()
    for name in COMMANDS:
        assert f"lanewise {name}" in text, name
    run = app.get_command(click.Context(app), "run")
    assert run is not None
    said = {"--quiet", "--verbose"}  # by their short forms
    for parameter in run.params:
        if isinstance(parameter, click.Option):
            long = [o for o in parameter.opts if o.startswith("--")]
            assert any(f"`{o}`" in text for o in long) or said & set(long), parameter.opts


def test_every_setting_of_the_readme_exists():
    from lanewise.settings import SETTINGS

    known = {row.env for row in SETTINGS} | {"LANEWISE_DEBUG"}
    for page in PAGES:
        named = set(re.findall(r"LANEWISE_[A-Z_]+", page.read_text()))
        assert named <= known, page.name
