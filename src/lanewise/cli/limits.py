"""How near to the machine's limits a bench came: bytes and multiply-adds of its work, by the spec.

Laws: the work is what any engine would have to do: every weight read once a token as its format
stores it, the cached positions as they are stored, one multiply-add per weight and row, two per
head, channel and visible position.  What we do beyond it (packing, padding, sampling) counts
against us.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lanewise.lane import Lane
    from lanewise.runtime.ruler import Limits

_EMBEDDING = "token_embd.weight"


def machine(threads: int) -> Limits:
    """The ruler, at the lane's number of threads."""
    from lanewise.runtime import ruler

    return ruler.measure(threads)


@dataclass(frozen=True, slots=True)
class Work:
    """What a lane's steps cost.  `weights` bytes are read for a step, `position` for each cached
    position; a row takes `macs` multiply-adds by recipe, the last row of a prompt `head` more, and
    `attention` for each position that it sees."""

    weights: int
    position: int
    macs: dict[str, int]
    head: dict[str, int]
    attention: int

    def write_bytes(self, depth: float) -> float:
        """Bytes that a token at a depth reads."""
        return self.weights + self.position * depth

    def prompt_macs(self, rows: int, depth: int) -> float:
        """Multiply-adds of `rows` of prompt after `depth` positions, of all recipes."""
        seen = rows * depth + rows * (rows + 1) / 2
        return rows * sum(self.macs.values()) + sum(self.head.values()) + self.attention * seen

    def prompt_s(self, rows: int, depth: int, limits: Limits) -> float:
        """The least seconds that `rows` of prompt after `depth` positions take."""
        seen = rows * depth + rows * (rows + 1) / 2
        total = self.attention * seen / limits.f32
        total += sum(rows * count / limits.peak(recipe) for recipe, count in self.macs.items())
        return total + sum(count / limits.peak(recipe) for recipe, count in self.head.items())


def work_of(lane: Lane, kv: str, activations: str) -> Work:
    """The work of an opened lane."""
    from lanewise.lane.spec import KV_BYTES, KV_GROUP
    from lanewise.quant.format import FORMATS

    spec = lane.spec
    head = _EMBEDDING if spec.tied else "output.weight"
    weights, macs, heads = 0, dict[str, int](), dict[str, int]()
    for constant in lane.program.constants:
        shape, row = constant.type.shape, FORMATS.get(constant.type.dtype)
        if constant.name == "rope" or (constant.name == _EMBEDDING and not spec.tied):
            continue  # a row of it per token
        count = 1
        for axis in shape:
            count *= axis
        weights += count * row.nbytes // row.block if row else count * 4
        if len(shape) == 2:
            quantised = row is not None and row.quantised
            exact = "f64" if activations == "f32" else "f32"
            recipe = activations if quantised and activations != "f32" else exact
            into = heads if constant.name == head else macs
            into[recipe] = into.get(recipe, 0) + count
    per_position = 2 * spec.layers * spec.kv_heads * spec.head_dim * KV_BYTES[kv] // KV_GROUP
    attention = 2 * spec.layers * spec.heads * spec.head_dim
    return Work(weights, per_position, macs, heads, attention)


def ratios(record: dict[str, Any], work: Work, limits: Limits) -> dict[str, float | None]:
    """Shares of the limit of a bench's record: `tg_of_limit` of the read rate, `pp_of_limit` of
    the multiply-adds, and `pp_macs_per_cycle`, multiply-adds of a core; None for a test that was
    left out (and where no clock is)."""
    tg, pp, prompt, depth = (record[k] for k in ("tg", "pp", "prompt", "depth"))
    mean = depth + 1 + (record["generate"] + 1) / 2  # positions that a token sees
    wrote = tg * work.write_bytes(mean) / limits.read if tg else None
    read = work.prompt_s(prompt, depth, limits) * pp / prompt if pp else None
    per_cycle = limits.per_cycle(work.prompt_macs(prompt, depth) * pp / prompt) if pp else None
    return {"pp_of_limit": read, "tg_of_limit": wrote, "pp_macs_per_cycle": per_cycle}
