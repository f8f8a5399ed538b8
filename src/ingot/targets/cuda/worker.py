"""The process that `workers` starts: kernels in, cubins out."""

from __future__ import annotations

import json

from ingot.support.errors import CompileError
from ingot.targets.cuda.codegen import compile_kernel
from ingot.targets.cuda.triton import Source
from ingot.targets.serve import serve


def _answer(header: bytes, text: bytes) -> bytes:
    name, parameters, hints, matrices, capability = json.loads(header)
    source = Source(name, text.decode(), *(tuple(map(tuple, told)) for told in (parameters, hints, matrices)))
    try:
        return compile_kernel(source, capability).record()
    except Exception as e:  # Triton's own kinds are many
        raise CompileError(f"kernel {name}: {type(e).__name__}: {e}") from e


def main() -> None:
    serve(bytes, _answer)
