"""The filters and tests that a chat template may use, each metered.

Laws: a filter that is not in `NAMES` does not exist; what goes through a value pays for its
weight; what multiplies text is refused before it does; no filter runs when a template is compiled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from jinja2 import pass_context
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS
from jinja2.runtime import Undefined
from jinja2.tests import TESTS
from jinja2.utils import _PassArg

from lanewise.text.meter import CHARACTER, STEP, Each, fits, limit, spend, weigh

_WIDEST = 1_000  # columns, repeats, slices: numbers that multiply text

NAMES = (
    "abs", "batch", "capitalize", "center", "count", "d", "default", "dictsort", "e", "escape",
    "first", "float", "format", "groupby", "indent", "int", "items", "join", "last", "length",
    "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse", "round",
    "safe", "select", "selectattr", "slice", "sort", "string", "sum", "title", "tojson", "trim",
    "truncate", "unique", "upper", "urlencode", "wordcount",
)  # fmt: skip
#: Filters that look at no more than a value's length or first item, or give it on.
_LIGHT = frozenset({"count", "d", "default", "first", "items", "last", "length"})
#: Filters that go through a value lazily, or item by item: each item is a step.
_LAZY = frozenset({"list", "map", "reject", "rejectattr", "select", "selectattr"})
#: Tests that compare; the others look at a value's type only.
_COMPARING = frozenset({
    "in", "==", "eq", "equalto", "!=", "ne", ">", "gt", "greaterthan", "ge", ">=", "<", "lt",
    "lessthan", "<=", "le", "lower", "upper",
})  # fmt: skip

# A conversion of the % operator: key, flags, width, precision.
_PERCENT = re.compile(
    r"%(\((?:[^()]|\([^()]*\))*\))?[#0\- +]*(?P<w>\*|\d*)(?:\.(?P<p>\*|\d*))?(?P<rest>\(?)"
)


def text_of(value: Any) -> str:
    """A value as the template's text; objects without a text of their own are refused."""
    if not isinstance(value, str):
        if not isinstance(value, (int, float, list, tuple, dict, Undefined, type(None))):
            raise SecurityError(f"a {type(value).__name__} has no text")
        weigh(value)
        value = str(value)
    spend(STEP + CHARACTER * fits(len(value)))
    return value


def bounded_range(*args: int) -> range:
    """range(), of at most 100,000 numbers."""
    numbers = range(*args)
    if len(numbers) > 100_000:
        raise limit(f"range() of {len(numbers)} numbers is too long")
    return numbers


def _narrow(*numbers: Any) -> None:
    for number in numbers:
        if isinstance(number, int) and abs(number) > _WIDEST:
            raise limit(f"{number} is too large a width or count")


def joined(parts: Any, glue: str) -> list[str]:
    """The parts as text, once it is known that they fit with the glue between them."""
    texts = [text_of(part) for part in Each(parts)]
    fits(sum(map(len, texts)) + len(glue) * len(texts))
    return texts


def _replaced(text: str, old: str, new: str) -> None:
    found = text.count(old)
    fits(len(text) + found * max(0, len(new) - len(old)))


def check_percent(form: str, values: Any) -> None:
    """Refuse widths that are large or computed, and values that are repeated too often."""
    for found in _PERCENT.finditer(form):
        widths = (found["w"], found["p"] or "")
        if found["rest"] or any(w == "*" or len(w) > 3 for w in widths):
            raise limit("a format has too large a width, or one that is computed")
    fits(len(form) + form.count("%") * (weigh(values) + _WIDEST))


def check_braces(form: str, *values: Any) -> None:
    """The same for str.format."""
    plain = form.replace("{{", "").replace("}}", "")
    if re.search(r"\{[^{}]*(\{|\d{4})", plain):
        raise limit("a format has too large a width, or one that is computed")
    fits(len(form) + plain.count("{") * (weigh(*values) + _WIDEST))


def check_method(name: str, text: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Before a method of a string runs: will its result fit?  Gives its arguments back."""
    if name in {"center", "ljust", "rjust", "zfill"}:
        _narrow(*args)
    elif name == "replace" and len(args) > 1 and all(isinstance(a, str) for a in args[:2]):
        _replaced(text, args[0], args[1])
    elif name == "join" and len(args) == 1:
        return (joined(args[0], text),)
    return args


_Check = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def _check_replace(value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    old = args[0] if args else named.get("old", "")
    new = args[1] if len(args) > 1 else named.get("new", "")
    _replaced(text_of(value), text_of(old), text_of(new))


def _check_indent(value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    width = (*args, named.get("width", 4))[0]
    _narrow(len(width) if isinstance(width, str) else width)
    size = len(width) if isinstance(width, str) else width
    fits(len(text_of(value)) + (str(value).count("\n") + 1) * size)


def _check_numbers(value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    _narrow(*args, *named.values())


def _check_format(value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    check_percent(text_of(value), [*args, named])


_CHECKS: dict[str, _Check] = {
    "batch": _check_numbers,
    "center": _check_numbers,
    "format": _check_format,
    "indent": _check_indent,
    "replace": _check_replace,
    "round": _check_numbers,
    "slice": _check_numbers,
}


def to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """The `tojson` filter: JSON as people write it, no HTML escapes, no \\u for letters."""
    _narrow(indent)
    weigh(value)
    known = {"sort_keys", "ensure_ascii", "separators"}
    if options.keys() - known:
        raise TypeError(f"tojson has no option {sorted(options.keys() - known)[0]!r}")
    separators = options.get("separators")
    return json.dumps(
        value,
        indent=indent,
        ensure_ascii=bool(options.get("ensure_ascii", False)),
        sort_keys=bool(options.get("sort_keys", False)),
        separators=tuple(separators) if separators else None,
    )


def _join(context: Any, value: Any, d: Any = "", attribute: Any = None) -> str:
    if attribute is not None:
        value = FILTERS["map"](context, value, attribute=attribute)
    return text_of(d).join(joined(value, text_of(d)))


def _sum(context: Any, value: Any, attribute: Any = None, start: Any = 0) -> Any:
    if attribute is not None:
        value = FILTERS["map"](context, value, attribute=attribute)
    numbers = [start, *Each(value)]
    if not all(isinstance(number, (int, float)) for number in numbers):
        raise TypeError("sum adds numbers only")
    return sum(numbers)


#: Filters that are ours: Jinja2's would escape, or add in quadratic time.
_OURS: dict[str, Callable[..., Any]] = {
    "join": pass_context(_join),
    "list": list,
    "sum": pass_context(_sum),
    "tojson": to_json,
}


def _metered(
    function: Callable[..., Any], check: _Check | None = None, light: bool = False,
    lazy: bool = False,
) -> Callable[..., Any]:
    """A filter or a test that spends before it runs, and whose result is weighed."""
    first = _PassArg.from_obj(function)

    @pass_context
    def wrapper(context: Any, value: Any, *args: Any, **named: Any) -> Any:
        spend(STEP)
        if lazy or isinstance(value, Iterator):
            value = each(value)
        elif not light:
            spend(weigh(value, *args, *named.values()))
        if check is not None:
            check(value, args, named)
        given = {
            None: (),
            _PassArg.context: (context,),
            _PassArg.eval_context: (context.eval_ctx,),
            _PassArg.environment: (context.environment,),
        }[first]
        result = function(*given, value, *args, **named)
        if isinstance(result, str) or not (light or lazy):
            spend(CHARACTER * weigh(result))
        return result

    return wrapper


def each(value: Any) -> Any:
    """A value whose every item is a step; undefined stays undefined, and empty."""
    return value if isinstance(value, Undefined) else Each(value)


def filters() -> dict[str, Callable[..., Any]]:
    """The filters by name."""
    known = {name: _OURS.get(name) or FILTERS[name] for name in NAMES}
    return {
        name: _metered(function, _CHECKS.get(name), name in _LIGHT, name in _LAZY)
        for name, function in known.items()
    }


def tests() -> dict[str, Callable[..., Any]]:
    """The tests by name: all of Jinja2's."""
    return {n: _metered(test, light=n not in _COMPARING) for n, test in TESTS.items()}
