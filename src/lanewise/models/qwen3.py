"""qwen3: dense Qwen3.  Every head of q and k is normed before the rope, which pairs channel i
with i + rotary/2; a head's width is stated, not width / heads."""

from __future__ import annotations

from lanewise.checkpoint.source import Checkpoint
from lanewise.lane.spec import ModelSpec
from lanewise.models.blocks import decoder
from lanewise.models.decoder import decoder_tensors, read_decoder
from lanewise.models.family import Family


def read_spec(checkpoint: Checkpoint) -> ModelSpec:
    return read_decoder(checkpoint, "qwen3", style="half", qk_norm=True)


FAMILY = Family(("qwen3",), "Qwen3 (dense)", read_spec, decoder_tensors, decoder)
