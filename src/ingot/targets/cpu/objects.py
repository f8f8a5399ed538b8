"""The disk cache of kernels' objects, keyed by LLVM IR text.

A kernel contains no weights, and its text does not contain its name: models with equal layers share objects, and so do
versions of Ingot that print the same text and compile it in the same way.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ingot.support.native import Features, host
from ingot.targets.cpu.workers import submit
from ingot.targets.objects import Object, compiler_identity, obtain

_SOURCE = Path(__file__).with_name("codegen.py")
KERNEL = "kernel"  # the function's name in the text, which the linker replaces


def compiled(text: str, features: Features, name: str = "") -> Object:
    """Return the object of a module of LLVM IR text, from the disk or beginning to compile it."""
    llvm = compiler_identity("llvmlite", "_version.py", _SOURCE)
    return obtain(("object", llvm, repr((features, host())), text), partial(submit, text, features), name)


__all__ = ["KERNEL", "compiled"]
