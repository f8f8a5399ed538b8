import errno
import mmap
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ingot.support.cache import DiskCache, cache_key, current_draft
from ingot.support.errors import ArtifactError
from ingot.support.files import atomic_write


def read(content: memoryview) -> bytes:
    data = bytes(content)
    if not data.startswith(b"ok"):
        raise ArtifactError("bad entry")
    return data


def put(cache: DiskCache, key: str, data: bytes) -> bool:
    return cache.store(key, [data])


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
    cache = DiskCache(tmp_path, max_bytes=350)
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
    trim = DiskCache.trim
    monkeypatch.setattr(DiskCache, "trim", lambda self: (trims.append(1), trim(self)))
    limit, size, total_bytes = 256_000, 5000, 0
    for i in range(150):
        put(DiskCache(tmp_path, limit), cache_key(str(i)), b"ok" + bytes(size - 2))
        total_bytes = sum(p.stat().st_size for p in tmp_path.rglob("*.entry"))
        assert total_bytes <= limit + limit // 16 + size
    assert total_bytes > limit // 2 and len(trims) <= 50


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
cache = DiskCache(Path(sys.argv[1]))
print("go", flush=True)
while True:
    for i in range(3):
        cache.store(cache_key(str(i)), [b"ok"] + [bytes([i]) * 100_000] * 5)
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


def test_an_entry_of_another_key_is_dropped(tmp_path: Path):
    cache, (mine, other) = DiskCache(tmp_path), map(cache_key, ("mine", "other"))
    assert put(cache, mine, b"ok mine") and put(cache, other, b"ok other")
    shutil.copyfile(cache.path(other), cache.path(mine))
    assert cache.load(mine, read) is None and not cache.path(mine).exists()
    assert put(cache, mine, b"ok mine") and cache.load(mine, read) == b"ok mine"


def test_an_array_is_written_before_its_head(tmp_path: Path):
    cache, key = DiskCache(tmp_path), cache_key("large")
    assert current_draft() is None
    with cache.drafting(key, 4096) as draft:
        assert current_draft() is draft
        piece = np.full(100, 7, np.uint8)
        array = draft.write(300, [(100, piece), (7, piece[:3])])
        assert array is not None and not array.flags.writeable and not cache.has(key)
        assert draft.write(300, [(0, piece)]) is None, "it has an array already"
        expected = np.zeros(300, np.uint8)
        expected[100:200] = expected[7:10] = 7
        assert not draft.store([b"ok"], array.copy()) and not draft.store([bytes(4097)], array)
        assert draft.store([b"ok", b" head"], array)
    assert current_draft() is None
    assert np.array_equal(array, expected), "it stays mapped"
    assert cache.load(key, read) == b"ok head".ljust(4096, b"\0") + expected.tobytes()
    assert stat.S_IMODE(cache.path(key).stat().st_mode) == 0o600
    assert [path.name for path in cache.path(key).parent.iterdir()] == [cache.path(key).name]


def test_a_draft_that_is_not_stored_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cache, key = DiskCache(tmp_path), cache_key("large")
    with pytest.raises(ZeroDivisionError), cache.drafting(key, 4096) as draft:
        draft.write(10, [(0, np.zeros(10, np.uint8))])
        assert len(list(cache.path(key).parent.iterdir())) == 1
        raise ZeroDivisionError
    assert list(cache.path(key).parent.iterdir()) == []
    with cache.drafting(key, 4096) as draft, monkeypatch.context() as full:
        full.setattr(mmap, "mmap", lambda *_, **__: (_ for _ in ()).throw(OSError(errno.ENOMEM, "no memory")))
        assert draft.write(10, [(0, np.zeros(10, np.uint8))]) is None
    with cache.drafting(key, 4096) as draft:
        array = draft.write(10, [(0, np.zeros(10, np.uint8))])
        assert array is not None
        (tmp_path / "target").write_bytes(b"mine")
        cache.path(key).symlink_to(tmp_path / "target")
        assert not draft.store([b"ok"], array), "a link that was planted meanwhile"
    assert (tmp_path / "target").read_bytes() == b"mine" and cache.path(key).is_symlink()
    cache.path(key).unlink()
    blocked = DiskCache(tmp_path / "file")
    (tmp_path / "file").write_bytes(b"")
    with blocked.drafting(key, 4096) as draft:
        assert draft.write(10, [(0, np.zeros(10, np.uint8))]) is None


def link_to_entry(cache: DiskCache, path: Path) -> None:
    path.rename(cache.folder / "elsewhere")
    path.symlink_to(cache.folder / "elsewhere")


def link_to_folder(cache: DiskCache, path: Path) -> None:
    path.parent.rename(cache.folder / "elsewhere")
    path.parent.symlink_to(cache.folder / "elsewhere")


@pytest.mark.parametrize(
    "plant",
    [
        link_to_entry,
        link_to_folder,
        lambda cache, path: path.chmod(0o666),
        lambda cache, path: (path.unlink(), os.mkfifo(path)),
        "others own it",
    ],
)
def test_what_others_planted_is_left_alone(
    plant: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    cache, key = DiskCache(tmp_path, max_bytes=1), cache_key("x")
    cache._store(key, [b"ok before"])
    if callable(plant):
        plant(cache, cache.path(key))
    else:
        user = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert cache.load(key, read) is None and not put(cache, key, b"ok after")
    cache.trim()
    cache.discard(key)
    assert os.path.lexists(cache.path(key))
    assert "cache" in caplog.text


def test_a_link_in_the_place_of_the_count_is_not_written(tmp_path: Path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"content")
    cache = DiskCache(tmp_path / "cache")
    put(cache, cache_key("x"), b"ok")
    (count,) = (p for p in cache.folder.iterdir() if p.is_file())
    count.unlink()
    count.symlink_to(victim)
    assert put(cache, cache_key("y"), b"ok") and victim.read_bytes() == b"content"


def test_entries_are_for_their_user_alone(tmp_path: Path):
    mask = os.umask(0)
    try:
        cache = DiskCache(tmp_path / "made" / "cache")
        put(cache, cache_key("x"), b"ok")
    finally:
        os.umask(mask)
    modes = {p.is_dir(): stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "made").rglob("*")}
    assert modes == {True: 0o700, False: 0o600}


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
