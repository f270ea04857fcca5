"""The public surface: closed, sorted, documented, and cheap to import."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lanewise

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted(m.name for m in pkgutil.walk_packages(lanewise.__path__, "lanewise."))


def test_all_is_sorted_and_complete():
    assert lanewise.__all__ == sorted(lanewise.__all__)
    assert set(lanewise._WHERE) | {"__version__"} == set(lanewise.__all__)
    assert dir(lanewise) == lanewise.__all__


def test_the_readme_lists_exactly_the_public_names():
    text = (ROOT / "README.md").read_text()
    table = text.split("<!-- public names -->")[1].split("<!-- end -->")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    names = [name for row in rows for name in re.findall(r"`lw\.(\w+)", row.split(" | ")[0])]
    assert sorted(names) == lanewise.__all__


@pytest.mark.parametrize("name", lanewise.__all__)
def test_every_name_is_there_and_has_a_docstring(name):
    value = getattr(lanewise, name)
    if name != "__version__":
        assert inspect.getdoc(value), name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = lanewise.nope
    assert not hasattr(lanewise, "app")


def test_the_version_is_the_packages():
    assert re.fullmatch(r"\d+\.\d+\.\d+", lanewise.__version__)


@pytest.mark.parametrize("name", MODULES)
def test_every_module_imports_and_opens_with_a_docstring(name):
    if name == "lanewise.__main__":
        return
    module = importlib.import_module(name)
    assert (module.__doc__ or "").strip(), f"{name} has no docstring"


def loaded(code: str) -> set[str]:
    """The top-level packages that a fresh interpreter has loaded after `code`."""
    script = f"{code}\nimport sys\nprint(' '.join({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
    )  # fmt: skip
    return set(done.stdout.split())


OPTIONAL = {
    "tokenizers", "jinja2", "rich", "prompt_toolkit", "ziglang", "torch", "transformers", "click",
    "huggingface_hub", "gguf", "safetensors", "platformdirs",
}  # fmt: skip


def test_importing_loads_nothing_else():
    names = loaded("import lanewise")
    assert not names & (OPTIONAL | {"numpy"})


def test_importing_every_name_loads_only_numpy():
    """All that `import` may cost beyond NumPy is our own modules."""
    names = loaded("from lanewise import *")
    assert "numpy" in names and not names & OPTIONAL
