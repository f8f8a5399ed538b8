"""The version of the compiler, as a digest of its sources, so that no cached file outlives a change of them.

To avoid reading six hundred files in each process, the digest is cached under the files' metadata.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from ingot.support.cache import DiskCache, cache_key
from ingot.support.errors import ArtifactError

_DIGEST_BYTES = 8


def digest(folder: Path) -> str:
    """The digest of the contents of all Python files below a folder, independent of its path."""
    files = sorted(_python_files(str(folder)))
    # a file that was written or replaced has another change time (ctime), which cannot be forged
    states = [(path, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for path, s in files]
    disk, key = DiskCache(), cache_key("sources", repr(states))
    text = disk.load(key, _read)
    if text is None:
        text = _digest([path for path, _ in files])
        disk.store(key, [text.encode()])
    return text


def _python_files(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                yield entry.path, entry.stat()
            elif entry.is_dir(follow_symlinks=False) and entry.name != "__pycache__":
                yield from _python_files(entry.path)


def _digest(paths: list[str]) -> str:
    total = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for path in paths:
        total.update(Path(path).read_bytes())
    return total.hexdigest()


def _read(content: memoryview) -> str:
    data = bytes(content)
    if len(data) != 2 * _DIGEST_BYTES or not data.isalnum():
        raise ArtifactError("a digest of sources", expected=f"{2 * _DIGEST_BYTES} characters", got=f"{len(data)} bytes")
    return data.decode()
