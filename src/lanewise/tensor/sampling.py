"""From logits to tokens: masks, draws, and a sequence's whole policy.

    logits -> penalties -> 1/T -> softmax -> top-k -> top-p -> min-p -> draw -> token
                                  (temperature 0: argmax, another graph)

Nothing renormalises: a draw is compared with its share of what is left.  `sample_rows` takes every
option per row, so that one plan serves any mix; `sample` fixes which steps there are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from lanewise.errors import LanewiseError, UsageError, collect
from lanewise.settings import MIN_TEMPERATURE
from lanewise.tensor.arguments import builder_of, checked, plain
from lanewise.tensor.builder import Builder
from lanewise.tensor.handles import State, Tensor

#: The seed's bound on what a truncation keeps.  Ours have none: k goes up to the row's width.
TOP_MAX_ROUNDS: Final = math.inf


@checked
def argmax(logits: Tensor) -> Tensor:
    """Index of the largest of the last axis, u32; the lowest on ties; NaN never wins."""
    return builder_of("argmax", logits).op("argmax", (logits,))


@checked
def sample_rows(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor,
    draws: Tensor,
) -> Tensor:  # fmt: skip
    """One token u32 [O] per row of logits f32 [O, V], every option a tensor [O] (top_k u32):
    one plan serves any mix.  temperature 0 is argmax; top_k 0, top_p 1, min_p 0 are off (a top_p
    of 0 keeps one token here, and is off in `SamplingOptions`: pass 1 for it).  A row with a NaN or
    +inf, or of -inf alone unless the temperature is 0, gives 0xFFFFFFFF, no token.
    `Runtime(strict=True)` refuses NaN and +inf in a port, and options below 0; without it a
    temperature below 0 or NaN is as 0, a top_p below 0 as 0 and NaN as 1, a min_p below 0 as 0,
    above 1 or NaN as 1."""
    b = builder_of("sample_rows", logits)
    b.watch(draws, 1, "a draw")
    b.watch(logits, math.inf, "a logit", signed=True)
    for what, x in {"a temperature": temperature, "a top_p": top_p, "a min_p": min_p}.items():
        b.watch(x, math.inf, what)
    return b.op("sample_rows", (logits, temperature, top_k, top_p, min_p, draws))


@checked
def top_k_mask(weights: Tensor, k: int) -> Tensor:
    """Keeps the k largest of each row (ties to the low index), zeroes the rest: exactly k."""
    return builder_of("top_k_mask", weights).op("top_k_mask", (weights,), k=k)


@checked
def top_p_mask(weights: Tensor, p: float) -> Tensor:
    """Keeps the smallest set of largest entries whose sum reaches p of the row's total."""
    return builder_of("top_p_mask", weights).op("top_p_mask", (weights,), p=p)


@checked
def min_p_mask(weights: Tensor, p: float) -> Tensor:
    """Keeps entries of at least p times the row's largest."""
    return builder_of("min_p_mask", weights).op("min_p_mask", (weights,), p=p)


@checked
def sample_categorical(weights: Tensor, draws: Tensor) -> Tensor:
    """Per row of weights f32 [R, V] the first index whose running sum exceeds draws[r] times the
    total: u32 [R].  Draws are clamped to [0, 1 - 2^-24]; a weight of 0 is never drawn."""
    b = builder_of("sample_categorical", weights, draws)
    b.watch(weights, math.inf, "a weight")
    b.watch(draws, 1, "a draw")
    return b.op("sample_categorical", (weights, draws))


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """One sequence's policy; the default is greedy.

    temperature 0 is argmax.  top_k: the most likely so many, 0 is off.  top_p: the fewest tokens
    that have so much of the probability; 0 is off (in `sample_rows` 1 is off, and 0 keeps one
    token), and 1 drops only what is too unlikely to add to the sum.  min_p: tokens of so much of
    the likeliest's probability, 0 is off.  repetition 0 or 1, presence 0 and frequency 0 are off.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 0.0
    min_p: float = 0.0
    repetition: float = 0.0
    presence: float = 0.0
    frequency: float = 0.0

    @property
    def greedy(self) -> bool:
        """True if the token is the argmax and no draw is read."""
        return self.temperature == 0

    @property
    def penalised(self) -> bool:
        """True if history and counts are read."""
        return self.repetition not in (0, 1) or self.presence != 0 or self.frequency != 0

    def validate(self) -> None:
        """Raise UsageError ``usage.option`` for every number that is out of range: none is
        clamped."""
        errors: list[LanewiseError] = []
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float | np.number):
                errors.append(UsageError("usage.option", f"{name} is {value!r}", place=name,
                                         remedy=f"give {name} a number"))  # fmt: skip
        collect(errors)

        def want(name: str, good: bool, range: str) -> None:
            if not good:
                value = getattr(self, name)
                errors.append(UsageError("usage.option", f"{name} is {value!r}", place=name,
                                         remedy=f"give {name} {range}"))  # fmt: skip

        t = self.temperature
        want("temperature", t == 0 or MIN_TEMPERATURE <= t < math.inf,
             f"0 (the most likely token) or at least {MIN_TEMPERATURE}")
        whole = isinstance(self.top_k, int | np.integer)
        want("top_k", whole and self.top_k >= 0, "0 (off) or more")
        want("top_p", 0 <= self.top_p <= 1, "above 0, up to 1; 0 is off")
        want("min_p", 0 <= self.min_p <= 1, "0 (off) to 1")
        want("repetition", 0 <= self.repetition < math.inf, "0 or 1 (off), or a positive number")
        want("presence", math.isfinite(self.presence), "a finite number")
        want("frequency", math.isfinite(self.frequency), "a finite number")
        collect(errors)

    def scalars(self, prefix: str, n: int, capacity: int) -> dict[str, int | float]:
        """What a step binds; n: how much of the history is filled.  Raises UsageError
        ``usage.option`` for n beyond the capacity."""
        if type(plain(n)) is not int or not 0 <= n <= capacity:
            raise UsageError("usage.option", f"n is {n}, the history holds {capacity}", place="n",
                             remedy="min(tokens so far, capacity)")  # fmt: skip
        values: dict[str, int | float] = {}
        if not self.greedy:
            values[f"{prefix}inverse_temperature"] = 1.0 / self.temperature
        if self.penalised:
            values[f"{prefix}n"] = n
            values[f"{prefix}repetition"] = self.repetition or 1.0
            values[f"{prefix}presence"] = self.presence
            values[f"{prefix}frequency"] = self.frequency
        return values


@checked
def declare_sampling_scalars(b: Builder, options: SamplingOptions, prefix: str = "") -> None:
    """Declare the scalars that `sample` reads for this policy, by the names of
    `SamplingOptions.scalars`."""
    for name in options.scalars(prefix, 0, 0):
        b.scalar(name, "u32" if name == f"{prefix}n" else "f32")


@checked
def sample(
    logits: Tensor, options: SamplingOptions, *, draws: Tensor | None = None,
    history: State | None = None, counts: State | None = None, prefix: str = "",
) -> tuple[Tensor, State | None]:  # fmt: skip
    """(token u32 [R], next version of counts or None) of logits f32 [R, V] by a policy.

    ``draws`` f32 [R] unless greedy; ``history`` u32 [C] and ``counts`` u32 [V] states exactly if
    penalised: counts are built anew from the first n of the history at each step.
    """
    b = builder_of("sample", logits)
    try:
        options.validate()
    except LanewiseError as error:
        b.refuse("attribute", f"sample: {error.message}", error.remedy)
        return b.poison(), None
    wanted: Mapping[str, tuple[Any, bool]] = {
        "draws": (draws, not options.greedy), "history": (history, options.penalised),
        "counts": (counts, options.penalised),
    }  # fmt: skip
    for name, (value, needed) in wanted.items():
        if needed and value is None:
            b.refuse("missing_operand", f"sample: {name} is missing", f"this policy reads {name}")
            return b.poison(), None
        if value is not None and not needed:
            b.refuse("operand", f"sample: {name} is given and nothing reads it",
                     f"leave {name} out, or change the policy")  # fmt: skip
            return b.poison(), None
    known = {x.name for x in b.scalars}
    lost = [n for n in options.scalars(prefix, 0, 0) if n not in known]
    if lost:
        b.refuse("scalar", f"sample: no scalar {', '.join(map(repr, lost))} is declared",
                 f"declare_sampling_scalars(b, options, {prefix!r}) before the op")
        return b.poison(), None
    if history is not None and counts is not None:
        n = b.scalar_ref("sample", f"{prefix}n", "u32")
        counts, _ = b.next_state("count_tokens", counts, history, n, as_="sample")
        names = ("repetition", "presence", "frequency")
        numbers = [b.scalar_ref("sample", f"{prefix}{name}", "f32") for name in names]
        logits = b.op("penalise", (logits, counts, *numbers), as_="sample")
    if options.greedy or draws is None:
        return b.op("argmax", (logits,), names={"x": "logits"}), counts
    b.watch(logits, math.inf, "a logit", signed=True)
    coldness = b.scalar_ref("sample", f"{prefix}inverse_temperature", "f32")
    logits = b.op("scale", (logits, coldness), strided=True, names={"x": "logits"})
    weights = b.op("softmax", (logits,), names={"x": "logits"})
    if options.top_k:
        weights = b.op("top_k_mask", (weights,), names={"k": "top_k", "x": "logits"},
                       k=options.top_k)  # fmt: skip
    if options.top_p:
        weights = top_p_mask(weights, options.top_p)
    if options.min_p:
        weights = min_p_mask(weights, options.min_p)
    return sample_categorical(weights, draws), counts
