"""Cubins of kernels, kept on disk by their Triton text: models that have a layer share its kernel."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ingot.targets.cuda.triton import Source
from ingot.targets.cuda.workers import submit
from ingot.targets.objects import Object, compiler, obtained

_SOURCES = tuple(Path(__file__).with_name(name) for name in ("codegen.py", "prelude.py"))


def compiled(source: Source, capability: int) -> Object:
    """The record (`KernelCode`) of a kernel for a compute capability: from the disk if it is there, else begun."""
    triton = compiler("triton", "__init__.py", *_SOURCES)
    return obtained(("cubin", triton, str(capability), repr(source)), partial(submit, source, capability))


__all__ = ["compiled"]
