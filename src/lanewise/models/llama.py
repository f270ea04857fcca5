"""llama: Llama 1 to 3, Mistral, SmolLM and others that converters write under this name.

The converter permutes the rows of q and k, so that channel pairs lie side by side: the rope of
these files is interleaved.  Llama 3.1's frequency factors come as the tensor rope_freqs.weight.
"""

from __future__ import annotations

from lanewise.checkpoint.source import Checkpoint
from lanewise.lane.spec import ModelSpec
from lanewise.models.blocks import decoder
from lanewise.models.decoder import decoder_tensors, read_decoder
from lanewise.models.family import Family


def read_spec(checkpoint: Checkpoint) -> ModelSpec:
    return read_decoder(checkpoint, "llama", style="interleaved")


FAMILY = Family(("llama",), "Llama, Mistral, SmolLM", read_spec, decoder_tensors, decoder)
