"""What was compiled of texts, kept on disk by all that decides it.

kind, compiler, machine, text  ->  key  ->  the object from the disk, or a job whose result `keep` puts there
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

_DIGEST = 16


@dataclass(frozen=True)
class Object:
    """An object in the making. name: of its kernel in the program. key: of its entry on disk, if it is to have one."""

    code: Future[bytes]
    name: str = ""
    key: str | None = None


def obtained(parts: tuple[bytes | str, ...], begin: Callable[[], Future[bytes]], name: str = "") -> Object:
    """The object that these parts decide: from the disk if it is there, else begun."""
    disk = shared()
    if disk is None:
        return Object(begin(), name)
    key = cache_key(*parts)
    found = disk.load(key, _read)
    if found is None:
        return Object(begin(), name, key)
    code: Future[bytes] = Future()
    code.set_result(found)
    return Object(code, name)


def keep(objects: Iterable[Object]) -> None:
    """Put finished ones on the disk that are not there."""
    disk = shared()
    if disk is not None:
        missing = {o.key: o.code.result() for o in objects if o.key and not disk.holds(o.key)}
        disk.store_all({key: (_digest(code), code) for key, code in missing.items()})


@cache
def compiler(package: str, version: str, *sources: Path) -> bytes:
    """What else decides what becomes of a text: the package's version, in one of its files, and what is asked of it."""
    spec = find_spec(package)
    assert spec is not None and spec.origin is not None  # not imported, which would take 0.1 s and more
    return b"".join(path.read_bytes() for path in (Path(spec.origin).with_name(version), *sources))


def _read(content: memoryview) -> bytes:
    digest, code = content[:_DIGEST], bytes(content[_DIGEST:])
    if _digest(code) != digest:
        raise ArtifactError("a kernel's object", expected="what was written", got="a damaged file")
    return code


def _digest(code: bytes) -> bytes:
    return blake2b(code, digest_size=_DIGEST).digest()


__all__ = ["Object", "compiler", "keep", "obtained"]
