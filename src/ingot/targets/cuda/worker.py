"""The process that `workers` starts: compiles kernels to cubins."""

from __future__ import annotations

import gc
import json
from contextlib import suppress

from ingot.support.errors import CompileError
from ingot.targets.cuda.codegen import compile_kernel, import_triton
from ingot.targets.cuda.triton import Source
from ingot.targets.serve import serve


def _answer(header: bytes, text: bytes) -> bytes:
    name, parameters, hints, matrices, arch = json.loads(header)
    source = Source(name, text.decode(), *(tuple(map(tuple, fields)) for fields in (parameters, hints, matrices)))
    try:
        return compile_kernel(source, arch).record()
    except Exception as e:  # Triton raises many kinds
        raise CompileError(f"kernel {name}: {type(e).__name__}: {e}") from e


_GC_THRESHOLD = 50_000  # objects between collections: those of a kernel live until it is compiled


def _greeting() -> bytes:
    """Import Triton before the first kernel arrives, and exclude its objects from garbage collection."""
    with suppress(ImportError):  # reported by the first kernel
        import_triton()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)
    return b""


def main() -> None:
    serve(_greeting, _answer)
