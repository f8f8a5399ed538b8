"""The disk cache: content-addressed files, least recently used ones dropped.

Entries are written to a temporary name and moved into place, so concurrent processes and a killed one leave whole
entries only; an entry that its reader refuses is deleted and rebuilt. Two processes that miss at once both build,
and the last one to finish stays, which is harmless: same key, same content.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

from ingot.support import flags
from ingot.support.errors import ArtifactError
from ingot.support.log import Log

T = TypeVar("T")
_SUFFIX = ".entry"
_STALE_SECONDS = 3600.0
_WRITTEN = "written"  # a file as long as what was written since the last trim, in parts of what the cache may hold
_PARTS, _SPARE = 256, 16
_log = Log("ingot.cache")


def cache_key(*parts: bytes | str | memoryview) -> str:
    """A digest of the parts and of where each one ends: ("ab", "c") and ("a", "bc") differ."""
    digest = hashlib.blake2b(digest_size=20)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


class DiskCache:
    """A folder of entries, by default INGOT_CACHE_DIR bounded by INGOT_CACHE_MB.

    The cache is a convenience: a folder that cannot be read or written costs a log record and a rebuild,
    never an error.
    """

    def __init__(self, folder: Path | None = None, max_bytes: int | None = None) -> None:
        self.folder = flags.cache_dir() if folder is None else folder
        self.max_bytes = flags.cache_bytes() if max_bytes is None else max_bytes

    def path(self, key: str) -> Path:
        return self.folder / key[:2] / (key + _SUFFIX)

    def load(self, key: str, read: Callable[[Path], T]) -> T | None:
        """`read(path)` of the entry, or None if there is none.

        An entry that `read` refuses with ArtifactError is deleted.
        """
        path = self.path(key)
        try:
            # Reading does not update atime everywhere; mtime is the cache's own record of use.
            os.utime(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:  # a cache of another user: readable is enough
            _log.info("cache: %s: %s", path, error)
        try:
            return read(path)
        except OSError as error:
            _log.warning("cache: cannot read %s: %s", path, error)
            return None
        except ArtifactError as error:
            _log.warning("cache: dropping %s, it will be rebuilt: %s", path, error)
            self.discard(key)
            return None

    def store(self, key: str, write: Callable[[Path], None]) -> bool:
        """Let `write(path)` make the entry (it must write atomically). False if it could not.

        From time to time the cache is trimmed: it never holds more than a sixteenth above its bound.
        """
        return self.store_all({key: write})

    def store_all(self, entries: Mapping[str, Callable[[Path], None]]) -> bool:
        """Many as one does."""
        stored = [self._store(key, write) for key, write in entries.items()]
        if any(stored) and self._is_due(entries):
            self.trim()
        return all(stored)

    def _is_due(self, keys: Iterable[str]) -> bool:
        """Count what was written, for all processes: looking at all entries each time would take as long as writing."""
        size = sum(path.stat().st_size for path in map(self.path, keys) if path.exists())
        parts = -(-size // max(1, self.max_bytes // _PARTS))
        try:
            with (self.folder / _WRITTEN).open("ab") as file:
                file.write(bytes(min(parts, _SPARE)))
                return file.tell() >= _SPARE
        except OSError as error:
            _log.info("cache: %s", error)
            return True

    def _store(self, key: str, write: Callable[[Path], None]) -> bool:
        path = self.path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path)
        except (OSError, ArtifactError) as error:
            _log.warning("cache: cannot keep %s: %s", path, error)
            return False
        return True

    def holds(self, key: str) -> bool:
        """Whether there is an entry, which nobody has looked into."""
        return os.path.exists(self.path(key))

    def discard(self, key: str) -> None:
        try:
            self.path(key).unlink(missing_ok=True)
        except OSError as error:
            _log.warning("cache: cannot delete %s: %s", self.path(key), error)

    def trim(self) -> None:
        """Delete the least recently used entries beyond `max_bytes`, and what killed processes left half-written."""
        with suppress(OSError):
            os.truncate(self.folder / _WRITTEN, 0)
        entries: list[tuple[float, int, Path]] = []
        stale = time.time() - _STALE_SECONDS
        for path in self.folder.glob("??/*"):
            try:
                status = path.stat()
            except OSError:  # another process was faster
                continue
            if path.name.endswith(".tmp"):
                if status.st_mtime < stale:
                    _remove(path)
            elif path.name.endswith(_SUFFIX):
                entries.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self.max_bytes:
                break
            # Whoever has the file mapped keeps it: unlinking only takes its name.
            _remove(path)
            total -= size


_shared: ContextVar[DiskCache | None] = ContextVar("ingot_shared_cache", default=None)


@contextmanager
def sharing(disk: DiskCache | None) -> Iterator[None]:
    """Within it, parts of programs are kept in `disk` and taken from there; None: nowhere."""
    token = _shared.set(disk)
    try:
        yield
    finally:
        _shared.reset(token)


def shared() -> DiskCache | None:
    """Where parts of programs are kept; None: nowhere."""
    return _shared.get()


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.info("cache: %s: %s", path, error)
