"""Ahead-of-time compilation of Triton text to cubins, and to code objects of AMD's GPUs. The only user of Triton; it
needs neither a GPU nor PyTorch.

The stages of Triton's backend run one after another, as in its `compile`, but without its cache and driver. These are
internals of Triton 3.6 to 3.9: a test covers them, and each kernel's parameters are checked.
"""

from __future__ import annotations

import itertools
import linecache
import re
from importlib import import_module
from typing import Any

from ingot.support.cubins import KernelCode, MatrixCode
from ingot.support.errors import CompileError
from ingot.support.log import TESTED, warn_if_untested
from ingot.targets.cuda.prelude import HIP_PRELUDE, PRELUDE
from ingot.targets.cuda.triton import Source

_ELEMENT_CODES = {"fp32": 7, "fp16": 6, "bf16": 9, "i8": 0, "fp8e4nv": 0, "fp8e5": 0}  # CUtensorMapDataType
_ENTRY = re.compile(r"\.entry [^(]*\(([^)]*)\)")
_HIP_PARAMETER = re.compile(r"\.value_kind: +(?:global_buffer|by_value)")
_WAVES_OF_32 = ("gfx10", "gfx11", "gfx12")
MAX_HIP_STAGES = 2  # of a loop's loads: one is computed with while the next is under way
# functions of CUDA's libdevice that AMD's has not, or by another name
_HIP_FUNCTIONS = {f"libdevice.{name}(": f"{name}(" for name in ("rint", "popc", "clz")}
_PACKED_OP = re.compile(r"\b(add|min|max)\.([su]16)x2\s+(\S+), (\S+), (\S+);")
_TWO_OPS = r"""{ .reg .b16 %a, %b, %c, %d;
	mov.b32 {%a, %b}, \4;
	mov.b32 {%c, %d}, \5;
	\1.\2 %a, %a, %c;
	\1.\2 %b, %b, %d;
	mov.b32 \3, {%a, %b}; }"""
_NUMBERS = itertools.count()  # of the texts that were loaded
MIN_EARLY_LAUNCH_CAPABILITY = 90  # from which on a kernel may start before its producers end


def import_triton() -> tuple[Any, Any, Any]:
    """Return Triton's C++ library, its compiler module, and its backends module."""
    warn_if_untested("triton", import_module("triton").__version__)
    library, compiler = import_module("triton._C.libtriton"), import_module("triton.compiler.compiler")
    return library, compiler, import_module("triton.backends.compiler")


def capability(arch: str) -> int:
    """Return the compute capability of an architecture of NVIDIA's: 90 for sm_90a."""
    return int(arch.removeprefix("sm_").rstrip("a"))


def is_hip(arch: str) -> bool:
    """Whether an architecture is one of AMD's."""
    return arch.startswith("gfx")


def compile_kernel(source: Source, arch: str) -> KernelCode:
    """Compile for GPUs of one architecture (sm_80, sm_90a, gfx942). Raises CompileError with Triton's message."""
    library, compiler, backends = import_triton()
    hip = is_hip(arch)
    warp = 32 if not hip or arch.startswith(_WAVES_OF_32) else 64
    target = backends.GPUTarget("hip" if hip else "cuda", arch if hip else capability(arch), warp)
    ir, backend = library.ir, compiler.make_backend(target)
    launches_early = not hip and capability(arch) >= MIN_EARLY_LAUNCH_CAPABILITY
    fn = _function(source, launches_early, hip)
    signature = {name: type_ for name, type_, *_ in source.parameters}
    attrs = {(i,): [["tt.divisibility", 16]] for i, (_, _, align, _) in enumerate(source.parameters) if align >= 16}
    ast = compiler.ASTSource(fn, signature, {}, attrs)
    hints = dict(source.hints)
    sizes = {"num_warps": hints.get("warps", 4), "num_stages": hints.get("stages", 3)}
    float_options = {"enable_fp_fusion": True}
    if hip:
        sizes["num_stages"] = min(sizes["num_stages"], MAX_HIP_STAGES)
    else:
        float_options["enable_reflect_ftz"] = False  # keep denormal numbers
    options = backend.parse_options({**sizes, **float_options, **ast.parse_options()})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module: Any = ast.make_ir(
        target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context
    )
    metadata: dict[str, Any] = {"hash": "", "target": target, **options.__dict__}
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, ast.language)
    for kind, stage in stages.items():
        module = stage(module, metadata)
        if kind in ("ptx", "amdgcn"):
            check_parameters(source, module)
        if kind == "ptx":
            module = split_packed_halves(module)
    if metadata.get("global_scratch_size", 0):
        raise CompileError(f"kernel {source.name}", expected="no scratch memory of Triton's own", got="some")
    threads, is_cooperative = warp * metadata["num_warps"], "meet(" in source.text
    awaits_producers = launches_early and "await_producers()" in source.text and not is_cooperative
    matrices = _matrices(source, metadata.get("tensordesc_meta") or [])
    count, writes = len(source.parameters), tuple(i for i, p in enumerate(source.parameters) if p[-1])
    return KernelCode(
        metadata["name"], module, threads, metadata["shared"], count, writes, awaits_producers, matrices, is_cooperative
    )


def check_parameters(source: Source, assembly: str) -> None:
    """Raise CompileError if a kernel's parameters are not those that a launch passes (`runtime/cuda/launch.py`): its
    own, four more after each matrix, and two of Triton's at the end. Another version of Triton may differ."""
    expected, entry = len(source.parameters) + 4 * len(source.matrices) + 2, _ENTRY.search(assembly)
    actual = entry[1].count(".param") if entry else len(_HIP_PARAMETER.findall(assembly))
    if actual != expected:
        version = import_module("triton").__version__
        raise CompileError(
            f"kernel {source.name} by Triton {version}", expected=f"{expected} parameters", got=f"{actual}",
            fix=f"pip install 'triton>=3.6,<={TESTED['triton']}.*', the versions that Ingot is tested with",
        )  # fmt: skip


def split_packed_halves(ptx: str) -> str:
    """Split operations on packed pairs of 16-bit integers into two. LLVM narrows indices to such pairs and leaves one
    half undefined; ptxas 12.8 then adds 0 instead of a constant."""
    return _PACKED_OP.sub(_TWO_OPS, ptx)


def _matrices(source: Source, descriptors: list[dict[str, Any]]) -> tuple[MatrixCode, ...]:
    """Return the descriptors by which the bulk copy engine copies tiles, in the layout that Triton's code expects."""
    parameters = [(i, type_) for i, (_, type_, *_) in enumerate(source.parameters) if type_.startswith("tensordesc")]
    matrices: list[MatrixCode] = []
    for (index, type_), numbers, meta in zip(parameters, source.matrices, descriptors, strict=True):
        rows, columns, stride, offset = numbers
        size, (tile_rows, tile_columns) = meta["elem_size"], meta["block_size"]
        kind = _ELEMENT_CODES[type_.partition("<")[2].partition("[")[0]]
        matrices.append(
            MatrixCode(
                index, kind, rows, columns, size * stride, size * offset, tile_rows, tile_columns, meta["swizzle"]
            )
        )
    return tuple(matrices)


def _function(source: Source, launches_early: bool, hip: bool) -> Any:
    """Load the text as a Triton function. It has no file: of kernels with one name and length in one second, Python
    would take the compiled form of the first from its cache."""
    text = source.text
    for cuda_name, own_name in _HIP_FUNCTIONS.items() if hip else ():
        text = text.replace(cuda_name, own_name)
    text = f"{HIP_PRELUDE if hip else PRELUDE}\n\nEARLY = tl.constexpr({launches_early})\n\n\n{text}"
    place = f"<kernel {source.name}, {next(_NUMBERS)}>"
    names: dict[str, Any] = {"__name__": f"ingot_triton_{source.name}"}
    # where Triton looks for the source of a function as it is defined; an entry without a time has no file
    linecache.cache[place] = len(text), None, text.splitlines(keepends=True), place
    try:
        exec(compile(text, place, "exec"), names)
    finally:
        del linecache.cache[place]
    return names[source.name]
