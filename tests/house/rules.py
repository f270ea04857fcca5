"""The house rules that no linter knows: sizes of files, functions and lines, and docstrings.

`python -m tests.house.rules` prints what breaks them and exits with 1; the suite runs the same.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE, FUNCTION, LINE = 500, 60, 100
PYTHON, NATIVE = {".py"}, {".h", ".cpp", ".cuh", ".cu"}
FOLDERS = ("src", "tests", "benchmarks")

_NOT_FUNCTION = re.compile(r"namespace|struct|class|enum|union|typedef|extern \"C\" \{|#|//|\s|\}")


def files(suffixes: set[str], root: Path = ROOT) -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes and "__pycache__" not in path.parts:
                yield path


def broken(root: Path = ROOT) -> list[str]:
    """One line for every breach: file:line: what."""
    found = []
    for path in files(PYTHON | NATIVE, root):
        text = path.read_text(encoding="utf-8")
        where = path.relative_to(root)
        found += [f"{where}:{n}: {what}" for n, what in sizes(text)]
        checks = python if path.suffix in PYTHON else native
        found += [f"{where}:{n}: {what}" for n, what in checks(text)]
    return found


def sizes(text: str) -> Iterator[tuple[int, str]]:
    lines = text.splitlines()
    if len(lines) > FILE:
        yield len(lines), f"{len(lines)} lines, at most {FILE}"
    for n, line in enumerate(lines, 1):
        if len(line) > LINE:
            yield n, f"{len(line)} columns, at most {LINE}"


def python(text: str) -> Iterator[tuple[int, str]]:
    """Long functions, and a file that does not open with a docstring."""
    if not text.strip():
        return
    tree = ast.parse(text)
    if not ast.get_docstring(tree):
        yield 1, "the file does not open with a docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION:
                yield node.lineno, f"{node.name} has {length} lines, at most {FUNCTION}"


def native(text: str) -> Iterator[tuple[int, str]]:
    """Long functions (by our layout: a head and its closing brace stand at the left margin), and
    a file that does not open with a comment."""
    lines = text.splitlines()
    if lines and not lines[0].startswith(("//", "/*")):
        yield 1, "the file does not open with a comment"
    head = 0  # the line where the function under way began
    for n, line in enumerate(lines, 1):
        if line.startswith("}"):
            if head and n - head + 1 > FUNCTION:
                yield head, f"a function of {n - head + 1} lines, at most {FUNCTION}"
            head = 0
        elif not head and "(" in line and not _NOT_FUNCTION.match(line):
            head = n
        if head == n and line.rstrip().endswith((";", "}")):
            head = 0  # a declaration, or all of it on one line


def main() -> int:
    found = broken()
    print("\n".join(found) if found else "sizes and docstrings: in order")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
