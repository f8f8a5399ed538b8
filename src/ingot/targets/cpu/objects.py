"""Objects of kernels, kept on disk by the text that they were made of.

    text, features  ->  key  ->  the object from the disk, or a job whose result `keep` puts there

Weights are no part of a kernel, and a kernel's name no part of its text: all models that have a layer share its object,
and so do versions of Ingot that print the same text and compile it in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from functools import cache, partial
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path

from ingot.support.cache import cache_key, shared
from ingot.support.dataclass import dataclass
from ingot.support.errors import ArtifactError
from ingot.support.files import atomic_write
from ingot.support.native import Features, host
from ingot.targets.cpu.workers import submit

KERNEL = "kernel"  # the name in the text of a function that the linker names
_DIGEST = 16


@dataclass(frozen=True)
class Object:
    """An object in the making. name: of its function `KERNEL` in the program. key: of its entry on disk, if it is to
    have one."""

    code: Future[bytes]
    name: str = ""
    key: str | None = None


def compiled(text: str, features: Features, name: str = "") -> Object:
    """The object of a module of LLVM IR text: from the disk if it is there, else begun."""
    disk = shared()
    if disk is None:
        return Object(submit(text, features), name)
    key = cache_key("object", _compiler(), repr((features, host())), text)
    found = disk.load(key, _read)
    if found is None:
        return Object(submit(text, features), name, key)
    code: Future[bytes] = Future()
    code.set_result(found)
    return Object(code, name)


def keep(objects: Iterable[Object]) -> None:
    """Put finished ones on the disk that are not there."""
    disk = shared()
    if disk is not None:
        missing = {o.key: o.code.result() for o in objects if o.key and not disk.holds(o.key)}
        disk.store_all({key: partial(_write, code) for key, code in missing.items()})


@cache
def _compiler() -> bytes:
    """What else decides what becomes of a text: LLVM's version, and what `codegen` asks of it."""
    spec = find_spec("llvmlite")
    assert spec is not None and spec.origin is not None  # not imported, which would take 0.1 s
    version = Path(spec.origin).with_name("_version.py")
    return b"".join(path.read_bytes() for path in (version, Path(__file__).with_name("codegen.py")))


def _write(code: bytes, path: Path) -> None:
    atomic_write(path, [blake2b(code, digest_size=_DIGEST).digest(), code], durable=False)


def _read(path: Path) -> bytes:
    data = path.read_bytes()
    digest, code = data[:_DIGEST], data[_DIGEST:]
    if blake2b(code, digest_size=_DIGEST).digest() != digest:
        raise ArtifactError(f"the object {path}", expected="what was written", got="a damaged file")
    return code
