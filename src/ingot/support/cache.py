"""The disk cache: content-addressed files with least-recently-used eviction.

    folder/ab/abcd....entry        [ content | its key ]

Large arrays of an entry are written to its file as they are computed, and need no other memory: see `Draft`.
Entries are written to a temporary name and moved into place, so that concurrent and killed processes leave only
complete entries; an entry that its reader refuses, or that was stored under another key, is deleted and rebuilt. Two
processes that miss at the same time both build, and the last one wins, which is harmless: same key, same content.

Entries are native code. Folders and files are private (0700, 0600). Links, files of other users and files that others
may write are neither read nor written: the inner folders are opened once and held, so that nobody can replace them
meanwhile, even if others can write to the outer one.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

import numpy as np

from ingot.support import flags
from ingot.support.dataclass import dataclass
from ingot.support.errors import ArtifactError
from ingot.support.files import NewFile, Part, make_private, replace_in
from ingot.support.log import Log

T = TypeVar("T")
_SUFFIX = ".entry"
_HEAD_BYTES = 16
_STALE_SECONDS = 3600.0
_COUNTER_FILE = "written"  # a file whose length counts the bytes since the last trim, in units of max_bytes / _PARTS
_PARTS, _MAX_COUNTED_PARTS = 256, 16
_NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC
_OF_OTHERS = "it is a link, or others own it or may write it; it is left alone"
_log = Log("ingot.cache")


def cache_key(*parts: bytes | str | memoryview) -> str:
    """A digest of the parts and their lengths: ("ab", "c") and ("a", "bc") differ."""
    digest = hashlib.blake2b(digest_size=20)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


@dataclass(frozen=True)
class Entry:
    """nbytes: the size of the file. used: the time of its last use, in seconds since 1970. head: its first bytes."""

    key: str
    nbytes: int
    used: float
    head: bytes


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

    def load(self, key: str, read: Callable[[memoryview], T]) -> T | None:
        """`read(content)` of the entry, which stays mapped, or None if there is none.

        An entry that `read` refuses with ArtifactError is deleted.
        """
        path = self.path(key)
        try:
            with self.opened(path.parent) as folder:
                view = _content(folder, path.name, key)
            return None if view is None else read(view)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            _log.warning("cache: cannot read %s: %s", path, error)
            return None
        except ArtifactError as error:
            _log.warning("cache: dropping %s, it will be rebuilt: %s", path, error)
            self.discard(key)
            return None

    def store(self, key: str, parts: Iterable[Part]) -> bool:
        """Store an entry. Returns False if that is not possible.

        The cache is trimmed from time to time: it never exceeds its bound by more than a sixteenth.
        """
        return self.store_all({key: parts})

    def store_all(self, entries: Mapping[str, Iterable[Part]]) -> bool:
        """Store several entries, as `store` does one."""
        stored = [self._store(key, parts) for key, parts in entries.items()]
        if any(stored):
            self.trim_if_due(entries)
        return all(stored)

    @contextmanager
    def drafting(self, key: str, head_bytes: int) -> Iterator[Draft]:
        """The draft of an entry, which is `current_draft()` inside the block and discarded at its end, unless it was
        stored."""
        with ExitStack() as files:
            draft = Draft(self, key, head_bytes, files)
            token = _draft.set(draft)
            try:
                yield draft
            finally:
                _draft.reset(token)

    def trim_if_due(self, keys: Iterable[str]) -> None:
        if self._is_due(keys):
            self.trim()

    def _is_due(self, keys: Iterable[str]) -> bool:
        """Whether to trim, by a count of written bytes for all processes: a scan of all entries for each store would
        take as long as the store."""
        size = sum(path.stat().st_size for path in map(self.path, keys) if path.exists())
        parts = -(-size // max(1, self.max_bytes // _PARTS))
        try:
            with self._open_counter() as file:
                file.write(bytes(min(parts, _MAX_COUNTED_PARTS)))
                return file.tell() >= _MAX_COUNTED_PARTS
        except OSError as error:
            _log.info("cache: %s", error)
            return True

    def _open_counter(self) -> BinaryIO:
        path = self.folder / _COUNTER_FILE
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NO_LINK, 0o600)
        if not _is_own(os.fstat(descriptor)):
            os.close(descriptor)
            raise PermissionError(errno.EPERM, _OF_OTHERS, str(path))
        return open(descriptor, "ab")

    def _store(self, key: str, parts: Iterable[Part]) -> bool:
        path = self.path(key)
        try:
            make_private(path.parent)
            with self.opened(path.parent) as folder:
                _check_replaceable(folder, path)
                replace_in(folder, path.name, (*parts, key.encode()), durable=False, private=True)
        except (OSError, ArtifactError) as error:
            _log.warning("cache: cannot keep %s: %s", path, error)
            return False
        return True

    @contextmanager
    def opened(self, inner: Path) -> Iterator[int]:
        """Open a private folder of entries. Raises OSError for one of another user."""
        descriptor = os.open(inner, os.O_RDONLY | os.O_DIRECTORY | _NO_LINK)
        try:
            status = os.fstat(descriptor)
            if status.st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, _OF_OTHERS, str(inner))
            if status.st_mode & 0o077:
                os.fchmod(descriptor, 0o700)
            yield descriptor
        finally:
            os.close(descriptor)

    def has(self, key: str) -> bool:
        """Whether there is an entry, valid or not."""
        return os.path.lexists(self.path(key))

    def discard(self, key: str) -> None:
        path = self.path(key)
        try:
            with self.opened(path.parent) as folder, suppress(FileNotFoundError):
                _check_own(os.stat(path.name, dir_fd=folder, follow_symlinks=False), path)
                os.unlink(path.name, dir_fd=folder)
        except OSError as error:
            _log.warning("cache: cannot delete %s: %s", path, error)

    def entries(self) -> list[Entry]:
        """The entries of this user. Listing does not count as use."""
        entries: list[Entry] = []
        for inner in self.folder.glob("??"):
            with suppress(OSError), self.opened(inner) as folder:  # another process was faster, or it is not ours
                for name in sorted(os.listdir(folder)):
                    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    if name.endswith(_SUFFIX) and _is_own(status):
                        head = _head(folder, name)
                        entries.append(Entry(name.removesuffix(_SUFFIX), status.st_size, status.st_mtime, head))
        return entries

    def trim(self) -> None:
        """Delete the least recently used entries beyond `max_bytes`, and partial files of killed processes."""
        with suppress(OSError), self._open_counter() as file:
            file.truncate(0)
        entries: list[tuple[float, int, Path]] = []
        stale = time.time() - _STALE_SECONDS
        for inner in self.folder.glob("??"):
            with suppress(OSError), self.opened(inner) as folder:  # another process was faster, or it is not ours
                for name in os.listdir(folder):
                    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    if name.endswith(".tmp"):
                        if status.st_mtime < stale:
                            os.unlink(name, dir_fd=folder)
                    elif name.endswith(_SUFFIX) and _is_own(status):
                        entries.append((status.st_mtime, status.st_size, inner / name))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self.max_bytes:
                break
            # Whoever has the file mapped keeps it: unlinking only takes its name.
            self.discard(path.name.removesuffix(_SUFFIX))
            total -= size


class Draft:
    """An entry whose array is written before its head, what stands in front of the array, is known.

    [ head, head_bytes | array | key ]
    """

    def __init__(self, disk: DiskCache, key: str, head_bytes: int, files: ExitStack) -> None:
        self._disk, self._key, self._path, self._files = disk, key, disk.path(key), files
        self.head_bytes = head_bytes
        self._folder, self._new = -1, cast("NewFile | None", None)
        self.array: np.ndarray | None = None

    def write(self, nbytes: int, pieces: Iterable[tuple[int, np.ndarray]]) -> np.ndarray | None:
        """Write pieces of the array, each at its offset, zeros between them; return the array, u8[nbytes], mapped and
        read-only. None if the disk refuses, or if the draft has an array already."""
        if self._new is not None:
            return None
        try:
            make_private(self._path.parent)
            self._folder = self._files.enter_context(self._disk.opened(self._path.parent))
            self._new = new = NewFile(self._folder, self._path.name, private=True)
            self._files.callback(new.discard)
            for offset, piece in pieces:
                new.file.seek(self.head_bytes + offset)
                new.file.write(piece.data)
            new.file.flush()
            new.file.truncate(self.head_bytes + nbytes)
            view = memoryview(mmap.mmap(new.file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ))
        except (OSError, ArtifactError) as error:
            _log.warning("cache: cannot keep %s: %s", self._path, error)
            return None
        self.array = np.frombuffer(view, np.uint8, nbytes, self.head_bytes)
        return self.array

    def store(self, head: Sequence[Part], array: np.ndarray) -> bool:
        """Store the entry: a head, zeros up to `head_bytes`, and the array that `write` returned. False for another
        array or a larger head, and if the disk refuses."""
        if self._new is None or array is not self.array or sum(map(len, head)) > self.head_bytes:
            return False
        file = self._new.file
        try:
            file.seek(0)
            for part in head:
                file.write(part)
            file.seek(0, os.SEEK_END)
            file.write(self._key.encode())
            _check_replaceable(self._folder, self._path)
            self._new.replace(durable=False)
        except (OSError, ArtifactError) as error:
            _log.warning("cache: cannot keep %s: %s", self._path, error)
            return False
        self._disk.trim_if_due([self._key])
        return True


def _head(folder: int, name: str) -> bytes:
    descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _NO_LINK, dir_fd=folder)
    try:
        return os.read(descriptor, _HEAD_BYTES)
    finally:
        os.close(descriptor)


def _content(folder: int, name: str, key: str) -> memoryview | None:
    """The content of an entry; records its use. Raises OSError, and ArtifactError for an entry of another key."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _NO_LINK, dir_fd=folder)
    try:
        status = os.fstat(descriptor)
        _check_own(status, name)
        # Reading does not update atime everywhere; mtime is the cache's own record of use.
        os.utime(descriptor)
        if status.st_size < len(key):
            raise ArtifactError("the entry of a cache", expected="its key at the end", got="a shorter file")
        view = memoryview(mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ))
    finally:
        os.close(descriptor)
    if view[-len(key) :] != key.encode():
        raise ArtifactError(
            "the entry of a cache", expected="its key at the end", got="another model's entry, or damage"
        )
    return view[: -len(key)]


def _is_own(status: os.stat_result) -> bool:
    """Whether it is a regular file of this user that no other user may write."""
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _check_replaceable(folder: int, path: Path) -> None:
    with suppress(FileNotFoundError):
        _check_own(os.stat(path.name, dir_fd=folder, follow_symlinks=False), path)


def _check_own(status: os.stat_result, path: Path | str) -> None:
    if not _is_own(status):
        raise PermissionError(errno.EPERM, _OF_OTHERS, str(path))


_draft: ContextVar[Draft | None] = ContextVar("ingot_draft", default=None)


def current_draft() -> Draft | None:
    """The draft of the entry that is being made; None: there is none."""
    return _draft.get()


_shared_cache: ContextVar[DiskCache | None] = ContextVar("ingot_shared_cache", default=None)


@contextmanager
def sharing(disk: DiskCache | None) -> Iterator[None]:
    """Cache parts of programs in `disk` inside the block; None: do not cache them."""
    token = _shared_cache.set(disk)
    try:
        yield
    finally:
        _shared_cache.reset(token)


def shared() -> DiskCache | None:
    """The cache for parts of programs; None if they are not cached."""
    return _shared_cache.get()
