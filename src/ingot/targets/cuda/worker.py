"""The process that `workers` starts: kernels in, cubins out."""

from __future__ import annotations

import gc
import json
from contextlib import suppress

from ingot.support.errors import CompileError
from ingot.targets.cuda.codegen import compile_kernel, import_triton
from ingot.targets.cuda.triton import Source
from ingot.targets.serve import serve


def _answer(header: bytes, text: bytes) -> bytes:
    name, parameters, hints, matrices, capability = json.loads(header)
    source = Source(name, text.decode(), *(tuple(map(tuple, told)) for told in (parameters, hints, matrices)))
    try:
        return compile_kernel(source, capability).record()
    except Exception as e:  # Triton's own kinds are many
        raise CompileError(f"kernel {name}: {type(e).__name__}: {e}") from e


_GARBAGE = 50_000  # objects between collections: kernels make many that stay until they are compiled


def _greeting() -> bytes:
    """Import Triton before the first kernel is there; collections leave alone what that made."""
    with suppress(ImportError):  # the first kernel tells it
        import_triton()
    gc.freeze()
    gc.set_threshold(_GARBAGE)
    return b""


def main() -> None:
    serve(_greeting, _answer)
