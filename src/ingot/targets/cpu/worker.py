"""The process that `workers` starts: compiles modules of LLVM IR to machine code."""

from __future__ import annotations

import gc
import json

from ingot.support.native import Features
from ingot.targets.cpu.codegen import core_name, emit
from ingot.targets.serve import serve


def _answer(header: bytes, text: bytes) -> bytes:
    arch, features, cpu, assembly = json.loads(header)
    return emit(text.decode(), Features(arch, tuple(features), cpu), assembly)


def main() -> None:
    gc.disable()  # no reference cycles to collect
    serve(lambda: core_name().encode(), _answer)
