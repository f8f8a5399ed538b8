"""Objects of kernels, kept on disk by the LLVM IR text that they were made of.

Weights are no part of a kernel, and a kernel's name no part of its text: all models that have a layer share its object,
and so do versions of Ingot that print the same text and compile it in the same way.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ingot.support.native import Features, host
from ingot.targets.cpu.workers import submit
from ingot.targets.objects import Object, compiler, obtained

_SOURCE = Path(__file__).with_name("codegen.py")
KERNEL = "kernel"  # the name in the text of a function that the linker names


def compiled(text: str, features: Features, name: str = "") -> Object:
    """The object of a module of LLVM IR text: from the disk if it is there, else begun."""
    llvm = compiler("llvmlite", "_version.py", _SOURCE)
    return obtained(("object", llvm, repr((features, host())), text), partial(submit, text, features), name)


__all__ = ["KERNEL", "compiled"]
