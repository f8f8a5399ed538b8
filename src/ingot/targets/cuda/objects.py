"""The disk cache of cubins, keyed by Triton text: models with equal layers share their kernels."""

from __future__ import annotations

from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

from ingot.support.errors import InputError
from ingot.targets.cuda.triton import Source
from ingot.targets.cuda.workers import submit
from ingot.targets.objects import Object, compiler_identity, obtain

_SOURCES = tuple(Path(__file__).with_name(name) for name in ("codegen.py", "prelude.py"))


def compiled(source: Source, arch: str) -> Object:
    """Return the record (`KernelCode`) of a kernel for an architecture, from the disk or beginning to compile it.

    Raises InputError without Triton.
    """
    return obtain(("cubin", _triton(), arch, repr(source)), partial(submit, source, arch))


@cache
def _triton() -> bytes:
    if find_spec("triton") is None:
        fix = "pip install 'ingot-compiler[cuda]'"
        raise InputError("target cuda", expected="the package triton, which makes its code", got="none", fix=fix)
    return compiler_identity("triton", "__init__.py", *_SOURCES)


__all__ = ["compiled"]
