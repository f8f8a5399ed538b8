"""Cubins of kernels, kept on disk by their Triton text: models that have a layer share its kernel."""

from __future__ import annotations

from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

from ingot.support.errors import InputError
from ingot.targets.cuda.triton import Source
from ingot.targets.cuda.workers import submit
from ingot.targets.objects import Object, compiler, obtained

_SOURCES = tuple(Path(__file__).with_name(name) for name in ("codegen.py", "prelude.py"))


def compiled(source: Source, capability: int) -> Object:
    """The record (`KernelCode`) of a kernel for a compute capability: from the disk if it is there, else begun.

    Raises InputError without Triton.
    """
    return obtained(("cubin", _triton(), str(capability), repr(source)), partial(submit, source, capability))


@cache
def _triton() -> bytes:
    if find_spec("triton") is None:
        fix = "pip install 'ingot-compiler[cuda]'"
        raise InputError("target cuda", expected="the package triton, which makes its code", got="none", fix=fix)
    return compiler("triton", "__init__.py", *_SOURCES)


__all__ = ["compiled"]
