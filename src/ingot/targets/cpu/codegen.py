"""LLVM IR text -> a relocatable object or assembly text. The only user of LLVM.

The printer's IR is already tiled, unrolled and vectorized, so a few cleanup passes replace LLVM's default pipeline,
which spends most of its time in vectorizers, inliner and unroller. Loop idiom recognition must not run: it would turn
loops into calls of memset and memcpy, which the blob does not contain.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from threading import Lock

import llvmlite
import llvmlite.binding as llvm

from ingot.support.errors import CompileError
from ingot.support.log import warn_if_untested
from ingot.support.native import FEATURES, Features, host

warn_if_untested("llvmlite", llvmlite.__version__)

_TRIPLES = {
    "x86_64": "x86_64-unknown-linux-gnu",
    "aarch64": "aarch64-unknown-linux-gnu",
    "riscv64": "riscv64-unknown-linux-gnu",
    "wasm32": "wasm32-unknown-unknown",
}
# Parts of the x86-64 baseline, or of 64-bit mode; disabling them would break code generation.
_BASELINE_FEATURES = frozenset({"64bit", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2", "sahf", "x87", "nopl"})

# Extensions of named cores outside of FEATURES, which LLVM would use on its own.
_UNLISTED_FEATURES = {
    "x86_64": ("sse4a", "fma4", "xop", "tbm"),
    "riscv64": (),
    "aarch64": ("sve", "sve2", "sme", "complxnum", "mops", "cssc", "rcpc", "rcpc-immo", "lse2", "lse128"),
}


def core_name() -> str:
    """Return LLVM's name of this machine's core, which selects the scheduling model."""
    return llvm.get_host_cpu_name()


@cache
def _initialize(arch: str) -> None:
    if arch == "x86_64":
        # schedules use selects to avoid branches; LLVM would assume that conditions in loops are predictable
        llvm.set_option("ingot", "-x86-cmov-converter=false")
    if arch == host().arch:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        llvm.initialize_native_asmparser()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()


def feature_string(features: Features) -> str:
    """Return LLVM's `+a,-b` text that enables exactly `features` and disables what the named core would imply besides.

    Artifacts record `features`, so code must not use anything else.
    """
    enabled = [f"+{name}" for name in features.features]
    if not features.cpu:
        return ",".join(enabled)
    is_host = features.arch == host().arch and features.cpu == core_name()
    implied: Mapping[str, bool] = llvm.get_host_cpu_features() if is_host else {}
    listed = FEATURES[features.arch].keys() | _BASELINE_FEATURES
    disabled = [f"-{name}" for name, present in implied.items() if present and name not in listed]
    disabled += [f"-{name}" for name in FEATURES[features.arch] if name not in features.features]
    if not is_host:
        disabled += [f"-{name}" for name in _UNLISTED_FEATURES[features.arch]]
    return ",".join(enabled + disabled)


_code_generation_lock = Lock()
_strength_reduction: bool | None = None  # the process's current option


@cache
def _machine(features: Features) -> llvm.TargetMachine:
    _initialize(features.arch)
    target = llvm.Target.from_triple(_TRIPLES[features.arch])
    reloc = "static" if features.arch == "wasm32" else "pic"  # one module has no other to be independent of
    return target.create_target_machine(
        cpu=features.cpu,
        features=feature_string(features),
        opt=2,
        reloc=reloc,
        codemodel="small",
        abiname="lp64d" if features.arch == "riscv64" else "",
    )


def _parse(text: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"LLVM refuses the generated IR: {error}", fix="this is a bug in the CPU target") from error
    module.triple = machine.triple
    module.data_layout = _data_layout(machine)
    return module


@cache
def _data_layout(machine: llvm.TargetMachine) -> str:
    return str(machine.target_data)


def _optimize(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    tuning = llvm.create_pipeline_tuning_options(speed_level=2)
    builder = llvm.create_pass_builder(machine, tuning)
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.add_dead_code_elimination_pass()
    passes.run(module, builder)


def emit(text: str, features: Features, assembly: bool = False) -> bytes:
    """Compile one module of LLVM IR text to a relocatable object (ELF, or WebAssembly), or to assembly text in UTF-8.

    Raises CompileError with LLVM's message for invalid IR.
    """
    global _strength_reduction
    machine = _machine(features)
    module = _parse(text, machine)
    _optimize(module, machine)
    with _code_generation_lock:
        # On x86-64 loop strength reduction takes half the time of code generation and repeats the printer's work: rows
        # are displacements from one pointer, as WebAssembly has them, too. AArch64's loads have no such displacements.
        # Options are process-wide.
        strength_reduction = features.arch not in ("x86_64", "wasm32")
        if strength_reduction != _strength_reduction:
            llvm.set_option("ingot", f"-disable-lsr={'false' if strength_reduction else 'true'}")
            _strength_reduction = strength_reduction
        return machine.emit_assembly(module).encode() if assembly else machine.emit_object(module)
