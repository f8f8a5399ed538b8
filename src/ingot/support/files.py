"""Files: written whole or not at all; mapped parts that leave memory once they were read."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ingot.support.errors import ArtifactError


def atomic_write(path: Path, parts: Iterable[bytes | bytearray | memoryview], *, durable: bool = True) -> None:
    """Write `parts` to a temporary file in the same folder, sync it and move it over `path`.

    A reader, a full disk or a killed process sees the old file or the new one, never a part. Raises
    ArtifactError, with nothing left behind, when the system refuses. `durable` False leaves the syncing to the system:
    after a loss of power the file may be damaged, which suits files that are checked when read and can be made again.

    What a link points to is written, not the link. Devices and pipes are written through, as nothing can replace them.
    """
    path = Path(os.path.realpath(path)) if path.is_symlink() and _kind(path) in (None, stat.S_IFREG) else path
    if _kind(path) not in (None, stat.S_IFREG):
        _write_through(path, parts)
        return
    temporary = path.parent / f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    try:
        _write(temporary, parts, durable)
        os.replace(temporary, path)
        if durable:
            _sync_folder(path.parent)
    except OSError as error:
        _discard(temporary)
        raise ArtifactError(
            f"cannot write {path}",
            expected="space and permission for the file",
            got=error.strerror or str(error),
            fix="nothing was written; free some space or choose another folder",
        ) from error
    except BaseException:
        _discard(temporary)
        raise


def _kind(path: Path) -> int | None:
    """The type of what is there (`stat.S_IFREG` ...), links followed; None for nothing."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except OSError:
        return None


def _write_through(path: Path, parts: Iterable[bytes | bytearray | memoryview]) -> None:
    if _kind(path) not in (stat.S_IFCHR, stat.S_IFIFO):
        raise ArtifactError(f"cannot write {path}", expected="a file, a pipe or a character device", got="neither")
    try:
        with path.open("wb") as file:
            for part in parts:
                file.write(part)
    except OSError as error:
        raise ArtifactError(f"cannot write {path}", got=error.strerror or str(error)) from error


def open_regular(path: Path) -> BinaryIO:
    """A file open for reading. Raises OSError, also for pipes and devices: one could wait for them forever."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
    raise OSError(code, "Is a directory" if stat.S_ISDIR(mode) else "it is a pipe or a device, not a file", str(path))


def _discard(path: Path) -> None:
    # a file system that cannot be written refuses this too, with or without such a file
    with suppress(OSError):
        path.unlink(missing_ok=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Alone among the processes that change `path` under this lock, which is a file beside it and ends with its holder.

    Raises ArtifactError when the system refuses.
    """
    import fcntl  # POSIX only, as the runtime's native threads are; reading needs no lock

    beside = path.with_name(f".{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
    except OSError as error:
        raise ArtifactError(
            f"cannot write {path}", expected="a folder to write to", got=error.strerror or str(error)
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, parts: Iterable[bytes | bytearray | memoryview], durable: bool) -> None:
    # O_EXCL and mode 0666: never follow a planted link, and let the umask decide as for any new file.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
    with open(descriptor, "wb", buffering=1 << 20) as file:
        for part in parts:
            file.write(part)
        file.flush()
        if durable:
            os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def release(array: np.ndarray) -> None:
    """Let the pages of the mapped file that `array` is a view of leave memory; reading it again brings them back.

    Left alone are arrays that are not views of a read-only mapping, and those that use less than half of the memory
    between their first and last element: others may still be reading what lies between.
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
