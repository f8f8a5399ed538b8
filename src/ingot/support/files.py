"""Atomic writes of files; mapped files whose pages are released after they were read."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np

from ingot.support.errors import ArtifactError

Part: TypeAlias = bytes | bytearray | memoryview


def atomic_write(path: Path, parts: Iterable[Part], *, durable: bool = True) -> None:
    """Write `parts` to a temporary file in the same folder, sync it and move it over `path`, whose mode it keeps.

    Readers see the old file or the new one, never a part of it, even if the disk is full or the process is killed.
    Raises ArtifactError, and removes the temporary file, if the system refuses. The next write to `path` removes the
    temporary files of killed processes. durable=False does not sync: after a power loss the file may be damaged, which
    is acceptable for files that are checked when they are read and can be rebuilt.

    For a link, its target is written. Devices and pipes are written directly, as they cannot be replaced.
    """
    path = Path(os.path.realpath(path)) if path.is_symlink() and _kind(path) in (None, stat.S_IFREG) else path
    if _kind(path) not in (None, stat.S_IFREG):
        _write_through(path, parts)
        return
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _sweep(folder, path.name)
            replace_in(folder, path.name, parts, durable=durable)
        finally:
            os.close(folder)
    except OSError as error:
        raise ArtifactError(
            f"cannot write {path}",
            expected="space and permission for the file",
            got=error.strerror or str(error),
            fix="nothing was written; free some space or choose another folder",
        ) from error


def is_inside(path: Path, folder: Path) -> bool:
    """Whether `path` is in `folder`, wherever its links lead; or, for a folder of a snapshot in a cache of Hugging
    Face's hub, among the cache's blobs, which hold its files.

    models--a--b/snapshots/1f2e/onnx/model.onnx_data   ->   models--a--b/blobs/9c0d
    """
    real, base = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    snapshots = (p.parent for p in (base, *base.parents) if p.parent.name == "snapshots")
    return real.is_relative_to(base) or any(real.is_relative_to(s.parent / "blobs") for s in snapshots)


_MAX_LINKS = 40


def folders_of(path: Path) -> Iterator[Path]:
    """The folder of a file, and if the file is a link, the folders of its targets, one after another."""
    for _ in range(_MAX_LINKS):
        yield path.parent
        if not path.is_symlink():
            return
        path = path.parent / os.readlink(path)


def replace_in(folder: int, name: str, parts: Iterable[Part], *, durable: bool, private: bool = False) -> None:
    """Atomically replace the file `name` in an open folder by one with the content `parts`. private: see `NewFile`.

    Raises OSError, and removes the temporary file.
    """
    new = NewFile(folder, name, private=private)
    try:
        for part in parts:
            new.file.write(part)
        new.replace(durable=durable)
    except BaseException:
        new.discard()
        raise


class NewFile:
    """A temporary file in an open folder, until `replace` moves it to `name` or `discard` removes it.

    private: readable by this user only. Otherwise the new file gets the mode of the old one, and its owner if the
    system allows that. Raises OSError, and removes the temporary file.
    """

    def __init__(self, folder: int, name: str, *, private: bool) -> None:
        self._folder, self._name = folder, name
        before = None if private else _status(folder, name)
        descriptor, self._temporary = _temporary(folder, name, 0o600 if private or before else 0o666)
        self.file = os.fdopen(descriptor, "w+b", 1 << 20)
        try:
            if before is not None:
                _take_mode(descriptor, before)
        except BaseException:
            self.discard()
            raise

    def replace(self, *, durable: bool) -> None:
        with self.file:
            self.file.flush()
            if durable:
                os.fsync(self.file.fileno())
            os.replace(self._temporary, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        if durable:
            os.fsync(self._folder)

    def discard(self) -> None:
        with suppress(OSError):  # a full disk refuses what is still buffered
            self.file.close()
        # a file system that cannot be written refuses this too, with or without such a file
        with suppress(OSError):
            os.unlink(self._temporary, dir_fd=self._folder)


def _status(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _temporary(folder: int, name: str, mode: int) -> tuple[int, str]:
    """A new file and its name. It is locked as long as it is open: `_sweep` removes files that are not locked."""
    while True:
        temporary = f".{name}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
        # O_EXCL: a link that somebody else put there is not followed
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=folder)
        with suppress(OSError):  # a file system without locks: nothing is swept there
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, temporary
        os.close(descriptor)  # swept before it was locked


def _take_mode(descriptor: int, before: os.stat_result) -> None:
    mode, status = before.st_mode & 0o777, os.fstat(descriptor)
    if (before.st_uid, before.st_gid) != (status.st_uid, status.st_gid):
        try:
            os.fchown(descriptor, before.st_uid, before.st_gid)
        except OSError:
            mode &= 0o707  # the file has another group
    os.fchmod(descriptor, mode)


def _sweep(folder: int, name: str) -> None:
    """Remove the temporary files of killed processes from earlier writes to `name`: those that are not locked."""
    pattern = re.compile(rf"\.{re.escape(name)}\.\d+\.[0-9a-f]{{8}}\.tmp")
    for temporary in filter(pattern.fullmatch, os.listdir(folder)):
        with suppress(OSError):  # it is gone, or being written
            descriptor = os.open(temporary, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(temporary, dir_fd=folder)
            finally:
                os.close(descriptor)


def _kind(path: Path) -> int | None:
    """The type of file (`stat.S_IFREG` ...), with links followed; None if there is none."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except OSError:
        return None


def _write_through(path: Path, parts: Iterable[Part]) -> None:
    if _kind(path) not in (stat.S_IFCHR, stat.S_IFIFO):
        raise ArtifactError(f"cannot write {path}", expected="a file, a pipe or a character device", got="neither")
    try:
        with path.open("wb") as file:
            for part in parts:
                file.write(part)
    except OSError as error:
        raise ArtifactError(f"cannot write {path}", got=error.strerror or str(error)) from error


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading. Raises OSError, also for pipes and devices, as a read could block forever."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
    raise OSError(code, "Is a directory" if stat.S_ISDIR(mode) else "it is a pipe or a device, not a file", str(path))


def map_file(path: Path) -> np.ndarray:
    """uint8: the bytes of a file, mapped read-only. Raises OSError as `open_regular` does."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size == 0:
            return np.zeros(0, np.uint8)
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def make_private(folder: Path) -> None:
    """Create a folder and its parents if they are missing, private to this user. Raises OSError."""
    missing = [folder]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for missing_folder in reversed(missing):
        with suppress(FileExistsError):
            missing_folder.mkdir(0o700)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the exclusive lock of `path`, a file in the same folder. It is released when the process ends.

    Raises ArtifactError when the system refuses.
    """
    lock_path = path.with_name(f".{path.name}.lock")
    try:
        make_private(path.parent)
        descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise ArtifactError(
            f"cannot write {path}", expected="a folder to write to", got=error.strerror or str(error)
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def release(array: np.ndarray) -> None:
    """Release the pages of the mapped file that `array` is a view of; reading the array again loads them again.

    Does nothing for arrays that are not views of a read-only mapping, and for those that use less than half of the
    memory between their first and last element, as others may still read the rest.
    """
    base, inner = array, array.base
    while inner is not None and not isinstance(inner, memoryview | mmap.mmap):
        base, inner = (inner if isinstance(inner, np.ndarray) else base), getattr(inner, "base", None)
    mapped = inner.obj if isinstance(inner, memoryview) else inner
    if not isinstance(mapped, mmap.mmap) or base.flags.writeable or not hasattr(mmap, "MADV_DONTNEED"):
        return
    low, high = np.lib.array_utils.byte_bounds(array)
    if high - low > 2 * array.nbytes:
        return
    page = mmap.PAGESIZE
    # whole pages only: a page shared with a neighbour stays
    first = -(-(low - base.ctypes.data) // page) * page
    last = (high - base.ctypes.data) // page * page
    if first < last:
        mapped.madvise(mmap.MADV_DONTNEED, first, last - first)
