"""What a file system refuses, told in words: cause, numbers, place and remedy."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from lanewise import disk
from lanewise.errors import BuildError


def refused(number: int, place: Path, name: str | None = None, **more: int) -> BuildError:
    error = OSError(number, os.strerror(number), name)
    return disk.refused(error, place, "the thing", code="build.cache", **more)


def test_a_full_disk_has_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = shutil.disk_usage(tmp_path)._replace(free=2_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    # A folder that was never made is on the disk of the one above it.
    error = refused(errno.ENOSPC, tmp_path / "a" / "b", need=98_300_000, held=1_500_000)
    assert error.code == "build.disk_full" and error.place == str(tmp_path / "a" / "b")
    assert error.message == ("no space is left for the thing: 98.3 MB are needed, 3.5 MB are free")
    assert "LANEWISE_CACHE_DIR" in error.remedy and "lanewise cache clear" in error.remedy
    assert refused(errno.ENOSPC, tmp_path).message.endswith("the thing: 2.0 MB are free")
    quota = refused(errno.EDQUOT, tmp_path, need=1_000_000)
    assert quota.code == "build.disk_full" and quota.message.endswith("disk quota exceeded")


def test_a_limit_of_files_is_not_a_full_disk(tmp_path: Path) -> None:
    error = refused(errno.EFBIG, tmp_path, need=98_300_000)
    assert error.code == "build.file_size" and "a file of 98.3 MB is larger than" in error.message
    assert "ulimit -f" in error.remedy and "LANEWISE_CACHE_DIR" in error.remedy


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EIO])
def test_other_refusals_show_no_number(tmp_path: Path, number: int) -> None:
    inside = str(tmp_path / "file")
    for name, place in ((inside, inside), ("file", str(tmp_path)), (None, str(tmp_path))):
        error = refused(number, tmp_path, name)
        assert error.code == "build.cache" and error.place == place
        assert error.message == f"the thing cannot be written: {os.strerror(number)}"
        assert "Errno" not in str(error) and "LANEWISE_CACHE_DIR" in error.remedy


def test_what_is_in_the_way_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for name in ("file", "loop"):
        for place in (tmp_path / name, tmp_path / name / "a" / "b"):
            error = refused(errno.ENOTDIR, place)
            assert error.place == str(tmp_path / name) and "it is no folder" in error.message
            assert error.remedy == "set LANEWISE_CACHE_DIR to a folder"
    assert disk.no_folder(tmp_path) is None and disk.no_folder(tmp_path / "new" / "er") is None
