"""Options that several commands share, with their ranges.  A bad value is refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, TypeVar

import click

from lanewise.settings import MAX_THREADS, MIN_TEMPERATURE

F = TypeVar("F", bound=Callable[..., Any])

ACTIVATIONS = click.Choice(["int8x2", "int8", "f32"])
KV = click.Choice(["f16", "f32", "q8_0"])
BIG = 1 << 24  # positions: beyond any checkpoint's context


class Whole(click.IntRange):
    """An integer in a range, named as people would."""

    name = "integer"


class Number(click.FloatRange):
    """A float in a closed range that is a number: click's own range lets NaN through."""

    name = "number"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number


class Temperature(Number):
    """0, or a number from `MIN_TEMPERATURE` on: smaller ones are no numbers to the sampler."""

    def __init__(self) -> None:
        super().__init__(0, 1000)

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        number = super().convert(value, param, ctx)
        if 0 < number < MIN_TEMPERATURE:
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number

    def _describe_range(self) -> str:
        return f"x=0 or {MIN_TEMPERATURE}<=x<={self.max}"


class Names(click.ParamType):
    """Comma-separated names."""

    name = "names"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(part.strip() for part in str(value).split(","))
        if not all(names):
            self.fail("wants names with commas between them.", param, ctx)
        return names


@dataclass(frozen=True, slots=True)
class LaneOptions:
    """How to compile a model; None leaves the choice to the settings."""

    context: int | None = None
    threads: int | None = None
    activations: str | None = None
    kv: str | None = None
    hold: tuple[str, ...] | None = None
    offline: bool | None = None


@dataclass(slots=True)
class Sampling:
    """How to choose tokens: what `generate` and `chat` take; `chat`'s /set changes it."""

    max_tokens: int | None = None
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int | None = None
    speculate: str | None = None


SAMPLING: dict[str, tuple[str, click.ParamType, str]] = {  # field -> (flag, type, help)
    "max_tokens": ("-n", Whole(1, BIG), "Most tokens to write.  [default: no limit]"),
    "temperature": ("--temp", Temperature(), "Randomness; 0 takes the most likely token."),
    "top_k": (
        "--top-k",
        Whole(0, (1 << 32) - 1),
        "Keep the k most likely tokens; 0 is off.",
    ),
    "top_p": (
        "--top-p",
        Number(0, 1, min_open=True),
        "Keep the fewest tokens with this probability; 1 is off.",
    ),
    "min_p": ("--min-p", Number(0, 1), "Drop tokens below this share of the best; 0 is off."),
    "seed": ("--seed", Whole(0, (1 << 63) - 1), "Makes the choice repeatable."),
    "speculate": (
        "--speculate",
        click.Choice(["auto", "off", *map(str, range(8))]),
        "Guess tokens from what the text repeats; never changes it.  [default: auto]",
    ),
}


def model_argument(function: F) -> F:
    return click.argument("model")(function)


def offline_option(function: F) -> F:
    return click.option("--offline", is_flag=True, default=None, help="Never touch the network.")(
        function
    )


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(function)


def talk_options(function: F) -> F:
    """`-q` and `-v`: whether stages and speed are told on stderr."""

    @click.option("-q", "--quiet", is_flag=True, help="Tell no stages and no speed.")
    @click.option("-v", "--verbose", is_flag=True, help="Tell them also when not on a terminal.")
    @wraps(function)
    def with_talk(*args: Any, quiet: bool, verbose: bool, **kwargs: Any) -> Any:
        return function(*args, live=False if quiet else True if verbose else None, **kwargs)

    return with_talk  # type: ignore[return-value]


_LANE = (
    click.option(
        "-c",
        "--context",
        type=Whole(1, BIG),
        help="Positions to make room for.  [default: the model's, at most 4096]",
    ),
    click.option(
        "-t",
        "--threads",
        type=Whole(1, MAX_THREADS),
        help="Threads to run on.  [default: one for each core]",
    ),
    click.option(
        "--activations",
        type=ACTIVATIONS,
        help="Precision of what meets quantised weights.  [default: int8x2]",
    ),
    click.option("--kv", type=KV, help="Type of the cached keys and values.  [default: f16]"),
    click.option("--hold", type=Names(), help="Fusion rules to hold back: a,b,c or all."),
    offline_option,
)


def lane_options(*without: str) -> Callable[[F], F]:
    """The options of compiling, but those in `without`; the command gets `lane: LaneOptions`."""

    def decorate(function: F) -> F:
        @wraps(function)
        def with_lane(*args: Any, **kwargs: Any) -> Any:
            names = [f.name for f in fields(LaneOptions) if f.name in kwargs]
            options = LaneOptions(**{name: kwargs.pop(name) for name in names})
            return function(*args, lane=options, **kwargs)

        wrapped: Any = with_lane
        for name, option in zip(
            reversed([f.name for f in fields(LaneOptions)]), reversed(_LANE), strict=True
        ):
            wrapped = wrapped if name in without else option(wrapped)
        return wrapped

    return decorate


def sampling_options(function: F) -> F:
    """The options of choosing tokens; the command gets them as `sampling: Sampling`."""

    @wraps(function)
    def with_sampling(*args: Any, **kwargs: Any) -> Any:
        chosen = {name: kwargs.pop(name) for name in SAMPLING}
        return function(*args, sampling=Sampling(**chosen), **kwargs)

    defaults = Sampling()
    wrapped: Any = with_sampling
    for name, (flag, kind, text) in reversed(SAMPLING.items()):
        flags = (flag, "--max-tokens") if flag == "-n" else (flag,)
        default = getattr(defaults, name)
        wrapped = click.option(
            *flags, name, type=kind, default=default, show_default=default is not None, help=text
        )(wrapped)
    return wrapped
