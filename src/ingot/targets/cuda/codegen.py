"""Triton text to a cubin, ahead of time: all that uses Triton, which needs neither a GPU nor PyTorch for it.

The stages of Triton's own backend are called one after another, as its `compile` does, without its cache and driver.
These are internals of Triton 3.6 to 3.9; a test holds them, and each kernel's parameters are checked.
"""

from __future__ import annotations

import atexit
import importlib.util
import linecache
import re
import shutil
import tempfile
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from ingot.support.cubins import KernelCode, MatrixCode
from ingot.support.errors import CompileError
from ingot.support.log import TESTED, warn_if_untested
from ingot.targets.cuda.prelude import PRELUDE
from ingot.targets.cuda.triton import Source

_ELEMENTS = {"fp16": 6, "bf16": 9, "i8": 0, "fp8e4nv": 0, "fp8e5": 0}  # as CUtensorMapDataType has them
_ENTRY = re.compile(r"\.entry [^(]*\(([^)]*)\)")
_PAIRS = re.compile(r"\b(add|min|max)\.([su]16)x2\s+(\S+), (\S+), (\S+);")
_HALVES = r"""{ .reg .b16 %a, %b, %c, %d;
	mov.b32 {%a, %b}, \4;
	mov.b32 {%c, %d}, \5;
	\1.\2 %a, %a, %c;
	\1.\2 %b, %b, %d;
	mov.b32 \3, {%a, %b}; }"""
EARLY = 90  # the capability from which on kernels may start before those have ended that they await


def import_triton() -> tuple[Any, Any, Any]:
    """Its C++ part, its compiler, and its targets."""
    warn_if_untested("triton", import_module("triton").__version__)
    library, compiler = import_module("triton._C.libtriton"), import_module("triton.compiler.compiler")
    return library, compiler, import_module("triton.backends.compiler")


def compile_kernel(source: Source, capability: int) -> KernelCode:
    """Compile for GPUs of one compute capability (80, 90, 100). Raises CompileError with Triton's words."""
    library, compiler, backends = import_triton()
    ir, target = library.ir, backends.GPUTarget("cuda", capability, 32)
    backend = compiler.make_backend(target)
    early = capability >= EARLY
    fn = _function(source, early)
    signature = {name: type_ for name, type_, *_ in source.parameters}
    attrs = {(i,): [["tt.divisibility", 16]] for i, (_, _, align, _) in enumerate(source.parameters) if align >= 16}
    ast = compiler.ASTSource(fn, signature, {}, attrs)
    hints = dict(source.hints)
    exact = {"enable_reflect_ftz": False, "enable_fp_fusion": True}  # denormal numbers are numbers
    sizes = {"num_warps": hints.get("warps", 4), "num_stages": hints.get("stages", 3)}
    options = backend.parse_options({**sizes, **exact, **ast.parse_options()})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module: Any = ast.make_ir(
        target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context
    )
    metadata: dict[str, Any] = {"hash": "", "target": target, **options.__dict__}
    made: dict[str, Any] = {}
    backend.add_stages(made, options, ast.language)
    for kind, stage in made.items():
        module = stage(module, metadata)
        if kind == "ptx":
            check_parameters(source, module)
            module = in_halves(module)
    if metadata.get("global_scratch_size", 0):
        raise CompileError(f"kernel {source.name}", expected="no scratch memory of Triton's own", got="some")
    threads, together = 32 * metadata["num_warps"], "meet(" in source.text
    awaits = early and "await_producers()" in source.text and not together
    matrices = _matrices(source, metadata["tensordesc_meta"] or [])
    count, writes = len(source.parameters), tuple(i for i, told in enumerate(source.parameters) if told[-1])
    return KernelCode(metadata["name"], module, threads, metadata["shared"], count, writes, awaits, matrices, together)


def check_parameters(source: Source, ptx: str) -> None:
    """Raise CompileError for a kernel that takes others than a launch gives (`runtime/cuda/launch.py`): its own, four
    more behind each matrix, and two of Triton's at the end. Another version of Triton might."""
    given = len(source.parameters) + 4 * len(source.matrices) + 2
    entry = _ENTRY.search(ptx)
    taken = entry[1].count(".param") if entry else None
    if taken != given:
        version = import_module("triton").__version__
        raise CompileError(
            f"kernel {source.name} by Triton {version}", expected=f"{given} parameters", got=f"{taken}",
            fix=f"pip install 'triton>=3.6,<={TESTED['triton']}.*', the versions that Ingot is tested with",
        )  # fmt: skip


def in_halves(ptx: str) -> str:
    """The text with operations on two 16-bit integers at once made one by one. LLVM narrows indices to them and leaves
    one half undefined; to such a register ptxas 12.8 adds 0 instead of a constant."""
    return _PAIRS.sub(_HALVES, ptx)


def _matrices(source: Source, told: list[dict[str, Any]]) -> tuple[MatrixCode, ...]:
    """How tiles of matrices are to be copied, as Triton's code expects them."""
    places = [(i, type_) for i, (_, type_, *_) in enumerate(source.parameters) if type_.startswith("tensordesc")]
    found: list[MatrixCode] = []
    for (place, type_), numbers, meta in zip(places, source.matrices, told, strict=True):
        rows, columns, stride, offset = numbers
        size, (down, across) = meta["elem_size"], meta["block_size"]
        kind = _ELEMENTS[type_.partition("<")[2].partition("[")[0]]
        found.append(
            MatrixCode(place, kind, rows, columns, size * stride, size * offset, down, across, meta["swizzle"])
        )
    return tuple(found)


@cache
def _scratch() -> Path:
    """A folder for the texts: Triton reads a function's source from the file that it comes from."""
    folder = Path(tempfile.mkdtemp(prefix="ingot-triton-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _function(source: Source, early: bool) -> Any:
    """The text as Triton's function."""
    path = _scratch() / f"{source.name}.py"
    path.write_text(f"{PRELUDE}\n\nEARLY = tl.constexpr({early})\n\n\n{source.text}")
    spec = importlib.util.spec_from_file_location(f"ingot_triton_{source.name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    linecache.checkcache(str(path))
    return getattr(module, source.name)
