"""The registry's refusals in the words of an author of steps: what an op says of its operands knows
neither what they are called here nor where they come from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from lanewise.ir.graph import ROOTS
from lanewise.ir.opdef import opdef

_GIVES = {"top_k": "(values, ids)", "route": "(counts, tokens, permutation)"}


def renamed(text: str, names: Mapping[str, str]) -> str:
    """A refusal's words with operands and attributes as the author knows them."""
    for own, known in names.items():
        text = re.sub(rf"(?:(?<=: )|(?<=, )|(?<=\()|(?<=declare )|(?<=give )){own}\b", known, text)
    return text


def undeclared(op: str, made: str, remedy: str) -> str:
    """The remedy of a dtype that an operand was to be declared as, if it is no port but what an op
    `made`; `op`: whose order of operands to say ("": none)."""
    if made in ("", *ROOTS) or not remedy.startswith("declare "):
        return remedy
    said = [f"{made} gives {_GIVES[made]}: give another of them"] if made in _GIVES else []
    if op:
        order = ", ".join(o.rstrip("?") for o in opdef(op).operands)
        said.append(f"the order is {op}({order})")
    return "; ".join(said) or "no op casts between integers and floats: declare a port for it"
