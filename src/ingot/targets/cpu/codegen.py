"""LLVM IR text -> a relocatable object or assembly text: all that Ingot uses of LLVM.

The IR comes out of our own printer already tiled, unrolled and vectorized, so LLVM's default pipeline (whose
cost is mostly vectorizers, inliner and unroller) is replaced by a few cleaning passes. Loop-idiom recognition
must not run: it would turn loops into calls of memset and memcpy, which the blob does not have.
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

_TRIPLES = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}
# Parts of the x86-64 baseline, or of the mode we run in; naming them off would break code generation.
_BASELINE = frozenset({"64bit", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2", "sahf", "x87", "nopl"})

# What named cores have besides, of which LLVM makes use by itself.
_UNLISTED = {
    "x86_64": ("sse4a", "fma4", "xop", "tbm"),
    "aarch64": ("sve", "sve2", "sme", "complxnum", "mops", "cssc", "rcpc", "rcpc-immo", "lse2", "lse128"),
}


def core_name() -> str:
    """LLVM's name of the core this process runs on, which chooses the scheduling model."""
    return llvm.get_host_cpu_name()


@cache
def _initialize(arch: str) -> None:
    if arch == "x86_64":
        # schedules write selections where they want no branch; LLVM takes data in loops for predictable
        llvm.set_option("ingot", "-x86-cmov-converter=false")
    if arch == host().arch:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        llvm.initialize_native_asmparser()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()


def feature_string(features: Features) -> str:
    """LLVM's `+a,-b` text: exactly `features`, and off whatever else the named core would imply.

    Artifacts record `features`, so code may use nothing beyond them.
    """
    on = [f"+{name}" for name in features.features]
    if not features.cpu:
        return ",".join(on)
    here = features.arch == host().arch and features.cpu == core_name()
    implied: Mapping[str, bool] = llvm.get_host_cpu_features() if here else {}
    known = FEATURES[features.arch].keys() | _BASELINE
    off = [f"-{name}" for name, present in implied.items() if present and name not in known]
    off += [f"-{name}" for name in FEATURES[features.arch] if name not in features.features]
    if not here:
        off += [f"-{name}" for name in _UNLISTED[features.arch]]
    return ",".join(on + off)


_one_at_a_time = Lock()
_reduced: bool | None = None  # what the process was last told of strength reduction


@cache
def _machine(features: Features) -> llvm.TargetMachine:
    _initialize(features.arch)
    target = llvm.Target.from_triple(_TRIPLES[features.arch])
    return target.create_target_machine(
        cpu=features.cpu, features=feature_string(features), opt=2, reloc="pic", codemodel="small"
    )


def _parsed(text: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"LLVM refuses the generated IR: {error}", fix="this is a bug in the CPU target") from error
    module.triple = machine.triple
    module.data_layout = _layout(machine)
    return module


@cache
def _layout(machine: llvm.TargetMachine) -> str:
    return str(machine.target_data)


def _clean(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
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
    """One module of LLVM IR text -> a relocatable ELF object, or assembly text in UTF-8.

    Raises CompileError with LLVM's message for IR that it refuses.
    """
    global _reduced
    machine = _machine(features)
    module = _parsed(text, machine)
    _clean(module, machine)
    with _one_at_a_time:
        # On x86-64 loop strength reduction takes half the time of code generation for what the printer does: rows are
        # displacements from one pointer. AArch64's loads have no room for these. An option holds for the whole process.
        reduced = features.arch != "x86_64"
        if reduced != _reduced:
            llvm.set_option("ingot", f"-disable-lsr={'false' if reduced else 'true'}")
            _reduced = reduced
        return machine.emit_assembly(module).encode() if assembly else machine.emit_object(module)
