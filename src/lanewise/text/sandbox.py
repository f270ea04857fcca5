"""The environment in which a checkpoint's chat template runs: Jinja2's sandbox, metered.

A template comes from a stranger.  Jinja2's `ImmutableSandboxedEnvironment` keeps it from Python's
insides; what is added here keeps it from our time and memory.  Laws: every loop, call, filter,
test, operation and output spends of a `Meter`; methods and callables are those of a list, all
others are refused; nothing is evaluated when the template is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.runtime import LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace

from lanewise.text import filters, rewrite
from lanewise.text.filters import each, text_of
from lanewise.text.meter import CHARACTER, STEP, fits, limit, spend, weigh

_LARGEST_INT = 4_096  # bits

_METHODS: dict[type, frozenset[str]] = {
    str: frozenset({
        "capitalize", "casefold", "center", "count", "endswith", "find", "format", "index",
        "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "islower", "isnumeric",
        "isspace", "istitle", "isupper", "join", "ljust", "lower", "lstrip", "partition",
        "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rjust", "rpartition",
        "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title",
        "upper", "zfill",
    }),
    dict: frozenset({"get", "items", "keys", "values"}),
    list: frozenset({"count", "index"}),
    range: frozenset({"count", "index", "start", "step", "stop"}),
    tuple: frozenset({"count", "index", "grouper", "list"}),  # the last two: groupby's rows
    LoopContext: frozenset({
        "changed", "cycle", "depth", "depth0", "first", "index", "index0", "last", "length",
        "nextitem", "previtem", "revindex", "revindex0",
    }),
    Cycler: frozenset({"current", "next", "reset"}),
    Macro: frozenset({"arguments", "caller", "catch_kwargs", "catch_varargs", "name"}),
}

@pass_context
def _finalize(context: Any, value: Any) -> str:
    """What an output expression prints; as it wants the context, it is not run by the compiler."""
    return text_of(value)


class _Generation(Extension):
    """`{% generation %}` marks what a model wrote, for training; it prints what it holds."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """The metered environment; a template rendered in it needs a `Meter` in `METER`."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self, functions: dict[str, Callable[..., Any]]) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, optimized=False, autoescape=False,
            finalize=_finalize, cache_size=0,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )  # fmt: skip
        self.filters = filters.filters() | rewrite.FILTERS
        self.tests = filters.tests()
        self.globals = {
            "range": filters.bounded_range, "dict": dict, "namespace": Namespace, "cycler": Cycler,
            "joiner": Joiner, **functions,
        }  # fmt: skip
        self._callables = tuple(self.globals.values())

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        rewrite.Rewriter().rewrite(tree, 0)
        tree.set_environment(self)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, Namespace):
            return not attr.startswith("_")
        return any(attr in names for kind, names in _METHODS.items() if isinstance(obj, kind))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        spend(STEP)
        _check_binop(operator, left, right)
        result = self.binop_table[operator](left, right)
        if isinstance(result, int) and result.bit_length() > _LARGEST_INT:
            raise limit("a number has too many digits")
        spend(CHARACTER * weigh(result))
        return result

    def call(__self, __context: Any, __obj: Any, *args: Any, **named: Any) -> Any:
        spend(STEP)
        if isinstance(__obj, LoopContext):
            args = tuple(each(arg) for arg in args)
        elif not (
            isinstance(__obj, (Macro, Undefined, Joiner))
            or any(__obj is function for function in __self._callables)
            or getattr(__obj, "lanewise_checked", False)
        ):
            args = _of_method(__obj, args, named)
        result = super().call(__context, __obj, *args, **named)
        if isinstance(result, str):
            spend(CHARACTER * fits(len(result)))
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked(*args: Any, **named: Any) -> str:
            filters.check_braces(value.__self__, *args, *named.values())
            return wrapped(*args, **named)

        checked.lanewise_checked = True  # type: ignore[attr-defined]
        return checked


def _of_method(method: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """Before a method of plain data is called: what it goes through is paid for."""
    receiver = getattr(method, "__self__", None)
    if not isinstance(receiver, tuple(_METHODS)):
        raise SecurityError(f"a {type(method).__name__} may not be called")
    if isinstance(receiver, str):
        args = filters.check_method(getattr(method, "__name__", ""), receiver, args)
    if isinstance(receiver, (str, list, tuple)):
        spend(CHARACTER * weigh(receiver))
    if isinstance(receiver, range):
        spend(CHARACTER * len(receiver))
    spend(weigh(*args, *named.values()))
    return args


def _check_binop(operator: str, left: Any, right: Any) -> None:
    """Before an operation: will its result fit?"""
    if operator == "*":
        for times, value in ((left, right), (right, left)):
            if isinstance(times, int) and isinstance(value, (str, list, tuple)):
                fits(max(0, times) * weigh(value))
    elif operator == "+" and isinstance(left, (str, list, tuple)):
        fits(weigh(left) + weigh(right))
    elif operator == "%" and isinstance(left, str):
        filters.check_percent(left, right)
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        _check_power(left, right)


def _check_power(base: int, exponent: int) -> None:
    if abs(exponent) * max(1, base.bit_length()) > _LARGEST_INT:
        raise limit("a power has too many digits")
