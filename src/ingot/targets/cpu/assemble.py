"""LLVM IR text -> one linked blob of machine code, for the host or a named machine.

The IR comes out of our own printer already tiled, unrolled and vectorized, so LLVM's default pipeline (whose
cost is mostly vectorizers, inliner and unroller) is replaced by a few cleaning passes. Loop-idiom recognition
must not run: it would turn loops into calls of memset and memcpy, which the blob does not have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm

from ingot.support.errors import CompileError
from ingot.support.native import FEATURES, CodeObject, HostFeatures, host
from ingot.targets.cpu.driver import driver_ir
from ingot.targets.cpu.link import link

_TRIPLES = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}
# Parts of the x86-64 baseline, or of the mode we run in; naming them off would break code generation.
_BASELINE = frozenset({"64bit", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2", "sahf", "x87", "nopl"})


@dataclass(frozen=True)
class AssembleOptions:
    """codegen: LLVM's code generation level 0..3. clean: run the cleaning passes. verify: check the IR first."""

    codegen: int = 2
    clean: bool = True
    verify: bool = True


@cache
def host_features() -> HostFeatures:
    """The machine this process runs on, with LLVM's name of its core for the scheduling model."""
    machine = host()
    if machine.arch not in _TRIPLES:
        raise CompileError("CPU target", expected=f"one of {sorted(_TRIPLES)}", got=machine.arch)
    return HostFeatures(machine.arch, machine.features, llvm.get_host_cpu_name())


@cache
def _initialize(arch: str) -> None:
    if arch == host().arch:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        llvm.initialize_native_asmparser()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()


def feature_string(features: HostFeatures) -> str:
    """LLVM's `+a,-b` text: exactly `features`, and off whatever else the named core would imply.

    Artifacts record `features`, so code may use nothing beyond them.
    """
    on = [f"+{name}" for name in features.features]
    if not features.cpu:
        return ",".join(on)
    implied: Mapping[str, bool] = llvm.get_host_cpu_features() if features == host_features() else {}
    known = FEATURES[features.arch].keys() | _BASELINE
    off = [f"-{name}" for name, present in implied.items() if present and name not in known]
    off += [f"-{name}" for name in FEATURES[features.arch] if name not in features.features]
    return ",".join(on + off)


@cache
def _machine(features: HostFeatures, level: int) -> llvm.TargetMachine:
    _initialize(features.arch)
    target = llvm.Target.from_triple(_TRIPLES[features.arch])
    return target.create_target_machine(
        cpu=features.cpu, features=feature_string(features), opt=level, reloc="pic", codemodel="small"
    )


def parse(text: str, features: HostFeatures, options: AssembleOptions = AssembleOptions()) -> llvm.ModuleRef:
    """Parse LLVM IR text, set its target and run the cleaning passes. Raises CompileError with LLVM's message."""
    machine = _machine(features, options.codegen)
    try:
        module = llvm.parse_assembly(text)
        if options.verify:
            module.verify()
    except RuntimeError as error:
        raise CompileError(f"LLVM refuses the generated IR: {error}", fix="this is a bug in the CPU target") from error
    module.triple = _TRIPLES[features.arch]
    module.data_layout = str(machine.target_data)
    if options.clean:
        _clean(module, machine)
    return module


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


def emit_object(text: str, features: HostFeatures, options: AssembleOptions = AssembleOptions()) -> bytes:
    """One module of LLVM IR text -> a relocatable ELF object."""
    return _machine(features, options.codegen).emit_object(parse(text, features, options))


def emit_assembly(text: str, features: HostFeatures, options: AssembleOptions = AssembleOptions()) -> str:
    """One module of LLVM IR text -> assembly text, for `INGOT_DEBUG=5` and `dump`."""
    return _machine(features, options.codegen).emit_assembly(parse(text, features, options))


@cache
def _driver_object(features: HostFeatures) -> bytes:
    return emit_object(driver_ir(features.arch), features)


def assemble(
    texts: Sequence[str], features: HostFeatures | None = None, options: AssembleOptions = AssembleOptions()
) -> CodeObject:
    """Compile modules of LLVM IR text and the driver into one blob; modules may call each other's functions.

    Raises CompileError for malformed IR, undefined or doubly defined symbols and mutable globals.
    """
    features = features or host_features()
    return link_driver([emit_object(text, features, options) for text in texts], features)


def link_driver(objects: Sequence[bytes], features: HostFeatures) -> CodeObject:
    """Objects of `emit_object` and the driver as one blob. Raises CompileError as `assemble` does."""
    return link([_driver_object(features), *objects])
