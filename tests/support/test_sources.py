import os
from pathlib import Path

import pytest

from ingot.support import sources
from ingot.support.sources import digest


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path / "cache"))
    root = tmp_path / "tree"
    (root / "room").mkdir(parents=True)
    (root / "a.py").write_text("a = 1\n")
    (root / "room" / "b.py").write_text("b = 1\n")
    (root / "c.txt").write_text("no source")
    return root


def test_files_are_read_once(tree: Path, monkeypatch: pytest.MonkeyPatch):
    first = digest(tree)
    monkeypatch.setattr(sources, "_digest", lambda paths: pytest.fail("the files are read again"))
    assert digest(tree) == first


def test_every_change_is_seen(tree: Path):
    digests = {digest(tree)}
    inner = tree / "room" / "b.py"
    before = inner.stat()
    inner.write_text("b = 2\n")
    os.utime(inner, ns=(before.st_atime_ns, before.st_mtime_ns))  # as long and as old as it was
    digests.add(digest(tree))
    (tree / "room" / "d.py").write_text("d = 1\n")
    digests.add(digest(tree))
    (tree / "a.py").unlink()
    digests.add(digest(tree))
    assert len(digests) == 4
    (tree / "c.txt").write_text("other text")
    assert digest(tree) in digests


def test_a_damaged_entry_is_made_again(tree: Path, tmp_path: Path):
    first = digest(tree)
    (entry,) = (tmp_path / "cache").rglob("*.entry")
    entry.write_bytes(b"\xff")
    assert digest(tree) == first


def test_copies_are_one_version(tree: Path, tmp_path: Path):
    first = digest(tree)
    assert digest(tree.rename(tmp_path / "elsewhere")) == first
