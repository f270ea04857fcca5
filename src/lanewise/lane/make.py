"""`compile`: from a name to a running lane, every stage told; `inspect`: what a checkpoint holds.

Laws: everything that can be refused from the header (architecture, tensors, options, context) is
refused before anything is compiled or loaded; the pool of a cache is rounded up, so that lanes
that differ a little in context share one program (memory that is never touched costs nothing).
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from lanewise import settings
from lanewise.errors import LanewiseError, TextError, UsageError, collect
from lanewise.lane.form import Cut, Form
from lanewise.lane.lane import Lane
from lanewise.lane.runner import DECODE, LOGITS, PREFILL, Engine, Progress, Runner
from lanewise.lane.sampling import check_count, option_error
from lanewise.lane.spec import KV_BYTES, KV_GROUP, PAGE, ModelInfo, ModelSpec
from lanewise.lane.speculate import ROWS, VERIFY, Drafting, Later
from lanewise.lane.tune import Tuned, name_of, tune
from lanewise.lane.words import Words

if TYPE_CHECKING:
    from lanewise.checkpoint.gguf import Gguf
    from lanewise.ir.graph import Graph
    from lanewise.lane.profile import Profile
    from lanewise.pipeline import Options
    from lanewise.plan.program import Program
    from lanewise.runtime.library import Library
    from lanewise.runtime.session import Session
    from lanewise.runtime.weights import Constants

# Models lie above lanes, so a lane knows their registry by name only.
_REGISTRY: Final = "lanewise.models.family"
_DEFAULT_CONTEXT: Final = 4096
_LOGITS_ROWS: Final = 64
_MAX_CHUNK: Final = 1 << 13
_FEW: Final = 256  # positions of the smallest pool


@dataclass(frozen=True, slots=True)
class Knobs:
    """The options of `compile`, resolved and checked (but for what the model decides)."""

    context: int | None
    max_chunk: int
    activations: str
    kv: str
    threads: int | None
    hold: tuple[str, ...]
    speculate: str | int = "off"


def compile(
    model: str | os.PathLike[str],
    *,
    context: int | None = None,
    max_chunk: int | None = None,
    activations: str | None = None,
    kv: str | None = None,
    threads: int | None = None,
    hold: Sequence[str] | str | None = None,
    offline: bool | None = None,
    batch: int = 1,
    speculate: str | int | None = None,
    progress: Progress | None = None,
) -> Lane:
    """Compile a model and open it.

    model: a path to a .gguf, or a name (`lanewise list`).  An option that is None is taken from
    the environment (LANEWISE_<NAME>), else its default: context the smaller of the model's and
    4096 positions; max_chunk 512 prompt rows at once (a power of two; 1 runs decode steps only);
    activations "int8x2" ("int8", "f32"); kv "f16" ("f32", or "q8_0": 8 bits); threads one for each
    core; hold no fusion rule (names, or "all"); speculate "auto" (see `Lane.generate`).
    progress(stage, done, total, detail) is told of resolve, download, read, compile, pack, load,
    tune and prompt.

    Raises UsageError "usage.model", "usage.option", "usage.context", "usage.hold";
    CheckpointError "checkpoint.*"; ModelError "model.*"; TextError "text.*" (a damaged
    vocabulary or template, before anything is compiled); PlanError; BuildError "build.*";
    RunError "run.memory"; or several as Refused.

        with lw.compile("smollm2") as lane:
            print(lane.generate("Once upon a time", max_tokens=64, temperature=0).read())
    """
    from lanewise.runtime.memory import trim

    if progress is not None and not callable(progress):
        raise option_error("progress", progress, "a function of (stage, done, total, detail)")
    knobs = check_knobs(context, max_chunk, activations, kv, threads, hold, batch, speculate)
    tell = progress or (lambda stage, done, total, detail: None)
    checkpoint = open_checkpoint(model, offline, tell)
    try:
        family, spec = importlib.import_module(_REGISTRY).open_model(checkpoint)
        tell("read", 1, 1, f"{spec.architecture}, {len(checkpoint.tensors)} tensors")
        lane = _Opening(checkpoint, family, spec, knobs, tell).lane()
    except BaseException:
        checkpoint.close()
        raise
    trim()
    return lane


def check_knobs(
    context: int | None,
    max_chunk: int | None,
    activations: str | None,
    kv: str | None,
    threads: int | None,
    hold: Sequence[str] | str | None,
    batch: int,
    speculate: str | int | None = None,
) -> Knobs:
    """Options as given, else the environment's, else defaults; UsageError "usage.option" names
    each that is out of range ("usage.setting" if the environment is)."""
    settings.check()
    errors: list[LanewiseError] = []

    def count(name: str, value: Any, low: int, high: int) -> Any:
        try:
            return check_count(name, value, low, high)
        except UsageError as error:
            errors.append(error)

    def choice(name: str, value: Any, among: Sequence[str]) -> Any:
        found = settings.get(name) if value is None else value
        if found not in among:
            errors.append(option_error(name, found, "one of " + ", ".join(among)))
        return found

    room = (settings.get("context") or None) if context is None else context
    if room is not None:
        room = count("context", room, 1, 1 << 28)
    chunk = count("max_chunk", settings.get("max_chunk") if max_chunk is None else max_chunk,
                  1, _MAX_CHUNK)
    if chunk is not None and chunk & (chunk - 1):
        errors.append(option_error("max_chunk", chunk, "a power of two"))
    many = (settings.get("threads") or None) if threads is None else threads
    if many is not None:
        many = count("threads", many, 1, settings.MAX_THREADS)
    if batch != 1:
        errors.append(option_error("batch", batch, "1 (more sequences are not run yet)"))
    chosen = choice("activations", activations, ("int8x2", "int8", "f32"))
    cached = choice("kv", kv, tuple(KV_BYTES))
    held: tuple[str, ...] = ()
    try:
        held = tuple(settings.resolve("hold", hold))
        if not all(isinstance(name, str) for name in held):
            raise TypeError
    except TypeError:
        errors.append(option_error("hold", hold, "names of fusion rules: ('elementwise_chain',)"))
    ahead = settings.get("speculate") if speculate is None else speculate
    try:
        Drafting.checked(ahead)
    except UsageError as error:
        errors.append(error)
    collect(errors)
    assert chunk is not None
    if ahead == "auto" and chunk == 1:
        ahead = "off"  # decode steps only
    return Knobs(room, chunk, chosen, cached, many, held, ahead)


def open_checkpoint(
    model: str | os.PathLike[str], offline: bool | None, tell: Progress
) -> Gguf:
    """The checkpoint of a path or a name, pulled if need be."""
    from lanewise.checkpoint import names
    from lanewise.checkpoint.gguf import Gguf

    def pulled(stage: str, done: int, total: int, detail: str = "") -> None:
        tell("download", done, total, detail or stage)

    tell("resolve", 0, 1, str(model))
    path = names.resolve(model, offline=offline, progress=pulled)
    tell("resolve", 1, 1, str(path))
    return Gguf(path)


def inspect(model: str | os.PathLike[str], *, offline: bool | None = None) -> ModelInfo:
    """What the checkpoint of a path or a name holds; reads its header only.  A model that we do
    not run is told, not raised: `spec` is None and `problem` says why.

    Raises UsageError "usage.model", CheckpointError "checkpoint.*"."""
    checkpoint = open_checkpoint(model, offline, lambda stage, done, total, detail: None)
    spec: ModelSpec | None = None
    problem, unused = "", ()
    try:
        family, spec = importlib.import_module(_REGISTRY).open_model(checkpoint)
        unused = family.unused(spec, checkpoint)
    except LanewiseError as error:
        problem = str(error)
    return ModelInfo(
        path=str(checkpoint.path),
        architecture=str(checkpoint.metadata.get("general.architecture", ""))[:64],
        metadata=checkpoint.metadata,
        tensors=tuple(checkpoint.tensors.values()),
        spec=spec,
        problem=problem,
        unused=unused,
    )


def room_of(spec: ModelSpec, context: int | None) -> int:
    """Positions of the lane; UsageError "usage.context" beyond what the model was made for."""
    if context is None:
        return min(spec.context, _DEFAULT_CONTEXT)
    if context > spec.context:
        raise UsageError(
            "usage.context",
            f"{context} positions, and the model was made for {spec.context}",
            place="context",
            remedy=f"give at most {spec.context}",
        )
    return context


def pool_of(context: int) -> int:
    """Positions of the pool: a power of two up to 4096, then a multiple of 4096."""
    if context > _DEFAULT_CONTEXT:
        return -(-context // _DEFAULT_CONTEXT) * _DEFAULT_CONTEXT
    return max(_FEW, PAGE, 1 << (context - 1).bit_length())


class _Opening:
    """A checkpoint on its way to a lane."""

    def __init__(
        self, checkpoint: Gguf, family: Any, spec: ModelSpec, knobs: Knobs, tell: Progress
    ) -> None:
        from lanewise.targets.cpu import cpu_target

        if knobs.kv == "q8_0" and spec.head_dim % KV_GROUP:
            raise option_error(
                "kv", knobs.kv, f"f16 or f32 (heads of {spec.head_dim} channels do not hold whole "
                f"groups of {KV_GROUP})",
            )  # fmt: skip
        self.checkpoint, self.family, self.spec = checkpoint, family, spec
        self.knobs, self.tell = knobs, tell
        self.context = room_of(spec, knobs.context)
        self.pool = pool_of(self.context)
        self.target = cpu_target()
        self.words = Words(checkpoint.metadata, spec.vocab)
        rows = min(knobs.max_chunk, self.pool)
        self.cuts = {DECODE: self._cut(DECODE, 1)}
        if rows > 1:
            self.cuts[PREFILL] = self._cut(PREFILL, rows)

    def _cut(self, kind: str, rows: int, **more: Any) -> Cut:
        return Cut(kind, rows, context=self.pool, kv=self.knobs.kv, **more)

    def _forms(
        self, cuts: Mapping[str, Cut], *, timed: bool = False
    ) -> tuple[Program, dict[str, Form]]:
        """The program of some cuts, from disk or compiled now, and the forms for a user."""
        from lanewise.lane import store

        name = " ".join((self.spec.name or "(no name)").split())
        facts = {"model": f"{name} ({self.spec.architecture})", "context": str(self.pool)}
        key = store.key_of(
            self.spec, cuts, self.knobs.activations, self.knobs.hold, self.target.name, facts,
            *(("timed",) if timed else ()),
        )
        program = store.load(key)
        graphs = {
            name: cache(partial(self.family.author, self.spec, cut)) for name, cut in cuts.items()
        }
        plans = {name: partial(self._plan, graph) for name, graph in graphs.items()}
        if program is None:
            from lanewise.pipeline import compile_forms

            self._before_seconds()
            made = {name: graph() for name, graph in graphs.items()}
            program, known = compile_forms(
                made, replace(self._options, timed=timed), target=self.target.name, facts=facts
            )
            store.save(key, program)
            plans = {name: partial(known.__getitem__, name) for name in cuts}
        return program, {n: Form(n, cut, graphs[n], plans[n]) for n, cut in cuts.items()}

    def _before_seconds(self) -> None:
        """What compiling or packing would be wasted on is refused before: a damaged vocabulary or
        template.  One that is missing, or of a kind that we do not know, is of no concern to who
        gives ids."""
        if "tokenizer.ggml.tokens" not in self.checkpoint.metadata:
            return
        try:
            _ = self.words.template
        except TextError as error:
            if error.code not in ("text.model", "text.pretokenizer"):
                raise

    @property
    def _options(self) -> Options:
        from lanewise.pipeline import Options

        return Options(activations=self.knobs.activations, hold=self.knobs.hold)

    def _plan(self, graph: Callable[[], Graph]) -> Any:
        from lanewise.pipeline import plan_graph

        return plan_graph(graph(), self._options)

    def _library(self, program: Any, tell: Progress | None) -> Library:
        from lanewise.runtime.build import build
        from lanewise.runtime.library import Library

        return Library(build(program, self.target, tell))

    def _constants(self, program: Any) -> tuple[Constants, dict[str, Any]]:
        """The weights (from the sidecar), and with them what is computed at every start."""
        from lanewise.runtime.weights import load_constants, sidecar_path

        # The table depends on the context, which must not make another sidecar.
        stored = tuple(c for c in program.constants if c.name != "rope")
        packed = replace(program, constants=stored)
        owner = str(self.checkpoint.path.resolve())
        if not sidecar_path(packed, self.checkpoint.digest, owner)[0].exists():
            self._before_seconds()
        loaded = load_constants(
            packed, self.checkpoint.stored, self.checkpoint.digest, owner=owner,
            target=self.target, threads=self.knobs.threads, progress=self.tell,
        )
        table = aligned(self.spec.rope.table(self.pool))
        return loaded, {**loaded, "rope": table}

    def _require_memory(self) -> None:
        """RunError "run.memory" before anything is compiled or loaded, with the numbers."""
        from lanewise.runtime.memory import mib, require

        used = [self.checkpoint.tensors[name].nbytes for name, _ in self.spec.formats]
        weights = 0 if settings.get("weights_in") == "map" else sum(used) * 103 // 100
        cached = self.spec.kv_bytes(self.context, self.knobs.kv)
        require(
            weights + cached,
            f"the model with {self.context} positions (weights {mib(weights)}, {self.knobs.kv} keys"
            f" and values {mib(cached)})",
        )

    def _tuned(self, session: Session, program: Program) -> Tuned:
        """Figures for this machine, where there is a product that they matter to."""
        from lanewise.targets.host import host

        if settings.get("tune") == "off" or "_int8" not in program.text:
            return Tuned()
        name = name_of(program.identity, host().model, session.threads)
        return tune(session, name, self.tell)

    def _session(
        self, program: Program, library: Library, constants: dict[str, Any],
        states: dict[str, Any] | None = None,
    ) -> Session:
        from lanewise.runtime.session import Session

        return Session(program, library, constants, states=states, threads=self.knobs.threads)

    def lane(self) -> Lane:
        self._require_memory()
        program, forms = self._forms(self.cuts)
        library = self._library(program, self.tell)  # before the weights: a refusal comes sooner
        loaded, constants = self._constants(program)
        session = self._session(program, library, constants)
        sessions = [session]
        tuned = self._tuned(session, program)

        def beside(program: Program, library: Library) -> Session:
            """A session over the same weights, cache and figures."""
            states = {name: session.state(name) for name in ("k", "v")}
            found = self._session(program, library, constants, states)
            found.tune(*astuple(tuned.tuning))
            return found

        def another(name: str, rows: int, tell: Progress | None, **more: Any) -> Engine:
            """A form of a program of its own, over the same weights and cache."""
            cut = self._cut(name, min(rows, self.pool), outputs="all", **more)
            program, made = self._forms({name: cut})
            sessions.append(beside(program, self._library(program, tell)))
            forms.update(made)
            return sessions[-1]

        def timed(name: str, rows: int | None, depth: int) -> Profile:
            from lanewise.lane.profile import profile

            cut = self.cuts.get(name) or self._cut(name, min(ROWS, self.pool), outputs="all")
            program, made = self._forms({name: cut}, timed=True)
            library = self._library(program, self.tell)
            runner.forget()
            with beside(program, library) as timed:
                return profile(
                    timed, library, made[name].plan, name, rows=rows or cut.rows, depth=depth,
                    context=self.context,
                )

        verify = Later(partial(another, VERIFY, ROWS, None))  # untold: text is being written

        def close() -> None:
            verify.close()
            for each in reversed(sessions):
                each.close()
            constants.clear()
            loaded.close()
            self.checkpoint.close()

        runner = Runner(
            session, context=self.context, vocab=self.spec.vocab, trained=self.spec.context,
            max_chunk=self.cuts.get(PREFILL, self.cuts[DECODE]).rows,
            logits_engine=partial(another, LOGITS, _LOGITS_ROWS, self.tell, sample=False),
            verify_engine=verify, progress=self.tell,
        )
        # Nothing of the above refers to the lane: one that is dropped unclosed (a notebook's cell
        # run again) frees its weights at once, not when a collector comes by.
        return Lane(
            spec=self.spec, runner=runner, text=self.words, forms=forms, program=program,
            threads=session.threads, speculate=self.knobs.speculate, timed=timed, tuned=tuned,
            close=close,
        )


def aligned(array: Any, to: int = 64) -> Any:
    """A copy whose bytes begin at a multiple of `to`."""
    raw = np.empty(array.nbytes + to, np.uint8)
    at = -raw.ctypes.data % to
    view = raw[at : at + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


__all__ = ["Knobs", "check_knobs", "compile", "inspect", "pool_of", "room_of"]
