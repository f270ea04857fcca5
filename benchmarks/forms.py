"""Forms of a model of any number of rows, opened for timing: one step of a form, in seconds.

Laws: a step here is the lane's own (same passes, same kernels, same weights, same cache type), the
sampler and the head of every row included, as when a draft is checked; caches hold numbers that
were written (untouched pages would read faster than any memory).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from lanewise.lane import make
from lanewise.lane.form import Form
from lanewise.lane.runner import DECODE, Ports
from lanewise.lane.sampling import Sampling
from lanewise.lane.spec import PAGE, ModelSpec


@dataclass
class Opened:
    """Forms over one set of weights and one cache; `live`: the rows and depth of each form that
    are prepared; `filled`: positions of the cache that were written."""

    spec: ModelSpec
    forms: Mapping[str, Form]
    session: Any
    live: dict[str, tuple[int, int]] = field(default_factory=dict)
    filled: int = 0

    @cached_property
    def ports(self) -> dict[str, Ports]:
        return {name: Ports(self.session, name, True) for name in self.forms}

    def prepare(self, form: str, rows: int, depth: int) -> None:
        """Inputs of a step of `rows` rows after `depth` positions, greedy."""
        if self.live.get(form) == (rows, depth):
            return
        self.live[form] = rows, depth
        if rows + depth > self.filled:
            self.filled = -(-(rows + depth) // PAGE) * PAGE
            for name in ("k", "v"):
                self.session.state(name)[:, : self.filled] = 0.01
        p = self.ports[form]
        p.feed(np.random.default_rng(rows).integers(0, self.spec.vocab, rows).tolist(), depth)
        p.out_rows[:rows] = np.arange(rows)
        p.choose(Sampling(temperature=0.0), [0.0] * rows)

    def step(self, form: str, rows: int) -> float:
        """Seconds of a step that was prepared."""
        began = time.perf_counter()
        self.session.run(form, {"rows": rows, "outs": rows})
        return time.perf_counter() - began


def opening(model: str, context: int | None, **knobs: Any) -> Any:
    """A model on its way to a lane: what its forms are compiled by.  knobs: `activations`, `kv`,
    `threads`, as `lanewise.compile` takes them."""
    import importlib

    given = {"activations": None, "kv": None, "threads": None, **knobs}
    checked = make.check_knobs(
        context, None, given["activations"], given["kv"], given["threads"], None, 1, "off"
    )
    checkpoint = make.open_checkpoint(model, None, lambda *told: None)
    family, spec = importlib.import_module(make._REGISTRY).open_model(checkpoint)
    return make._Opening(checkpoint, family, spec, checked, lambda *told: None)


def name_of(rows: int) -> str:
    """The form of so many rows; one row is the decode form itself."""
    return DECODE if rows == 1 else f"rows{rows}"


@contextmanager
def opened(model: str, counts: list[int], depth: int, **knobs: Any) -> Iterator[Opened]:
    """A form for each count of rows, loaded; room for `depth` positions before them."""
    from lanewise.runtime.session import Session

    found = opening(model, depth + max(counts), **knobs)
    cuts = {name_of(n): found._cut(DECODE if n == 1 else "verify", n, outputs="all")
            for n in counts}  # fmt: skip
    program, forms = found._forms(cuts)
    library = found._library(program, None)
    loaded, constants = found._constants(program)
    try:
        threads = found.knobs.threads
        with Session(program, library, constants, threads=threads) as session:
            yield Opened(found.spec, forms, session)
    finally:
        constants.clear()
        loaded.close()
        found.checkpoint.close()
