"""The disk cache of compiled kernels, keyed by everything that affects the result.

kind, compiler, machine, text  ->  key  ->  the object from the disk, or a job whose result `store` writes there
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import cache
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path

from ingot.support.cache import cache_key, shared
from ingot.support.dataclass import dataclass
from ingot.support.errors import ArtifactError

_DIGEST_BYTES = 16


@dataclass(frozen=True)
class Object:
    """A compiled or pending object. name: of its kernel in the program. key: of the disk entry to write, None if
    cached."""

    code: Future[bytes]
    name: str = ""
    key: str | None = None


def obtain(parts: tuple[bytes | str, ...], begin: Callable[[], Future[bytes]], name: str = "") -> Object:
    """Return the object with the key of these parts, from the disk if possible; else begin to compile it."""
    disk = shared()
    if disk is None:
        return Object(begin(), name)
    key = cache_key(*parts)
    cached = disk.load(key, _read)
    if cached is None:
        return Object(begin(), name, key)
    code: Future[bytes] = Future()
    code.set_result(cached)
    return Object(code, name)


def store(objects: Iterable[Object]) -> None:
    """Write objects to the disk, unless they are there already. Waits for pending ones."""
    disk = shared()
    if disk is not None:
        missing = {o.key: o.code.result() for o in objects if o.key and not disk.has(o.key)}
        disk.store_all({key: (_digest(code), code) for key, code in missing.items()})


@cache
def compiler_identity(package: str, version: str, *sources: Path) -> bytes:
    """Return bytes that identify a compiler: the file that holds its package's version, and the sources that drive
    it."""
    spec = find_spec(package)
    assert spec is not None and spec.origin is not None  # not imported, which would take more than 0.1 s
    return b"".join(path.read_bytes() for path in (Path(spec.origin).with_name(version), *sources))


def _read(content: memoryview) -> bytes:
    digest, code = content[:_DIGEST_BYTES], bytes(content[_DIGEST_BYTES:])
    if _digest(code) != digest:
        raise ArtifactError("a kernel's object", expected="what was written", got="a damaged file")
    return code


def _digest(code: bytes) -> bytes:
    return blake2b(code, digest_size=_DIGEST_BYTES).digest()


__all__ = ["Object", "compiler_identity", "obtain", "store"]
