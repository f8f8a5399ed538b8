import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ingot.support.cache import DiskCache, cache_key
from ingot.support.errors import ArtifactError
from ingot.support.files import atomic_write


def read(path: Path) -> bytes:
    data = path.read_bytes()
    if not data.startswith(b"ok"):
        raise ArtifactError("bad entry")
    return data


def put(cache: DiskCache, key: str, data: bytes) -> bool:
    return cache.store(key, lambda path: atomic_write(path, [data]))


def test_keys_know_where_parts_end():
    assert cache_key("ab", "c") != cache_key("a", "bc")
    assert cache_key("ab") == cache_key(b"ab") == cache_key(memoryview(b"ab"))


def test_round_trip_and_corrupted_entry_is_deleted(tmp_path: Path):
    cache = DiskCache(tmp_path)
    key = cache_key("model")
    assert cache.load(key, read) is None
    assert put(cache, key, b"ok 1")
    assert cache.load(key, read) == b"ok 1"
    cache.path(key).write_bytes(b"rotten")
    assert cache.load(key, read) is None
    assert not cache.path(key).exists()
    assert put(cache, key, b"ok 2")
    assert cache.load(key, read) == b"ok 2"


def test_least_recently_used_entries_go_first(tmp_path: Path):
    cache = DiskCache(tmp_path, max_bytes=250)
    keys = [cache_key(str(i)) for i in range(3)]
    now = time.time()
    for age, key in zip((30, 20), keys, strict=False):
        put(cache, key, b"ok" + bytes(98))
        os.utime(cache.path(key), (now - age, now - age))
    assert cache.load(keys[0], read)
    put(cache, keys[2], b"ok" + bytes(98))
    assert [cache.path(key).exists() for key in keys] == [True, False, True]


def test_entries_are_not_all_looked_at_for_each_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trims: list[int] = []
    whole = DiskCache.trim
    monkeypatch.setattr(DiskCache, "trim", lambda self: (trims.append(1), whole(self)))
    most, size, held = 256_000, 5000, 0
    for i in range(150):
        put(DiskCache(tmp_path, most), cache_key(str(i)), b"ok" + bytes(size - 2))
        held = sum(p.stat().st_size for p in tmp_path.rglob("*.entry"))
        assert held <= most + most // 16 + size
    assert held > most // 2 and len(trims) <= 50


def test_what_cannot_be_kept_is_no_error(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    cache = DiskCache(tmp_path / "file" / "below")
    assert not put(cache, cache_key("x"), b"ok")
    assert cache.load(cache_key("x"), read) is None


def test_stale_temporary_files_are_swept(tmp_path: Path):
    cache = DiskCache(tmp_path)
    put(cache, cache_key("x"), b"ok")
    folder = cache.path(cache_key("x")).parent
    old, young = folder / ".a.entry.1.aa.tmp", folder / ".b.entry.1.bb.tmp"
    old.touch()
    young.touch()
    os.utime(old, (1, 1))
    cache.trim()
    assert not old.exists() and young.exists()


_WRITER = """
import sys
from pathlib import Path
from ingot.support.cache import DiskCache, cache_key
from ingot.support.files import atomic_write
cache = DiskCache(Path(sys.argv[1]))
print("go", flush=True)
while True:
    for i in range(3):
        cache.store(cache_key(str(i)), lambda path: atomic_write(path, [b"ok"] + [bytes([i]) * 100_000] * 5))
"""


def test_killed_and_concurrent_writers_leave_whole_entries(tmp_path: Path):
    cache = DiskCache(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    for _ in range(4):
        writers = [
            subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE, env=environment)
            for _ in range(2)
        ]
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.readline()
        time.sleep(0.05)
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.communicate()
        for i in range(3):
            data = cache.load(cache_key(str(i)), read)
            assert data is None or data == b"ok" + bytes([i]) * 500_000


def test_atomic_write_keeps_the_old_file(tmp_path: Path):
    path = tmp_path / "f"
    atomic_write(path, [b"old"])

    def parts():
        yield b"new"
        raise ValueError

    with pytest.raises(ValueError):
        atomic_write(path, parts())
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]
    with pytest.raises(ArtifactError, match=r"cannot write .*; nothing was written"):
        atomic_write(tmp_path / "no" / "f", [b"x"])


def test_a_read_only_file_system_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*args: object, **kwargs: object):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    for name in ("open", "unlink"):  # the kernel asks what it may write before it asks what there is
        monkeypatch.setattr(os, name, refuse)
    with pytest.raises(ArtifactError, match=r"cannot write .*Read-only file system"):
        atomic_write(tmp_path / "f", [b"x"])
