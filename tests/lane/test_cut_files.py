"""A checkpoint that is cut or goes while it is packed ends in an error, not the process."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import lanewise as lw
from lanewise.runtime import cache
from tests.models.support import GOLDEN


@pytest.mark.parametrize("name", ["llama_tied.q8_0.gguf"])
def test_cut_while_packing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path = tmp_path / name
    shutil.copy(GOLDEN / name, path)
    header = lw.inspect(path)
    first = min(t.offset for t in header.tensors)

    def cut(stage: str, done: int, total: int, detail: str) -> None:
        if stage == "pack" and done:
            os.truncate(path, first)

    with pytest.raises(lw.CheckpointError) as caught:
        lw.compile(path, context=64, threads=2, progress=cut)
    assert caught.value.code == "checkpoint.truncated" and str(path) in caught.value.place
    assert "tensor" in caught.value.message and "renaming" in (caught.value.remedy or "")
    owner = cache.key(str(path.resolve()))[:12]
    assert not [e for e in cache.entries() if e.kind == "weights" and e.name.startswith(owner)]

    shutil.copy(GOLDEN / name, tmp_path / "new")
    os.replace(tmp_path / "new", path)  # as the remedy says
    with lw.compile(path, context=64, threads=2) as lane:
        os.truncate(path, first)  # while it runs: nothing is read of it any more
        assert len(lane.generate([1, 2, 3], max_tokens=3, temperature=0).read()) >= 0
