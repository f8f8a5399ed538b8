"""Programs for CPUs as native libraries: an ELF file and its header, with the functions that portable C has."""

from __future__ import annotations

from pathlib import Path

from ingot.pipeline.functions.fixed_plan import fixed_plan
from ingot.runtime.executable import LIBRARY_SUFFIXES
from ingot.runtime.program import Program
from ingot.support.errors import CompileError, InputError
from ingot.support.files import atomic_write
from ingot.support.native import Features
from ingot.targets.c.program import c_parameters, identifier, print_header
from ingot.targets.cpu.c_entry import (
    MEMORY,
    RESET,
    RUN,
    RUN_IN,
    WEIGHTS,
    Memory,
    entry_ir,
    helpers,
    state_begins_at,
)  # fmt: skip
from ingot.targets.cpu.elf import MACHINES, Library, archive, relocatable, shared_object
from ingot.targets.cpu.link import link
from ingot.targets.cpu.objects import compiled


def export(program: Program, path: Path, weights: Path | None = None) -> None:
    """Write a program for CPUs as a shared object (`.so`), an object (`.o`) or an archive (`.a`), and its header.

    Raises InputError for another suffix or open sizes, and CompileError for a program for several devices.
    """
    if path.suffix not in LIBRARY_SUFFIXES:
        raise InputError(
            "a native library", expected=f"a name that ends in {', '.join(LIBRARY_SUFFIXES)}", got=path.name
        )
    if weights is not None:
        raise InputError("weights", expected="none: a library holds its own", got=str(weights))
    if program.device != "cpu" or len(program.code) > 1:
        raise CompileError("a native library", expected="a program for a CPU", got=", ".join(program.code))
    plan, code = fixed_plan(program), program.code["cpu"]
    if code.features.arch not in MACHINES:
        machines = " or ".join(f"a program for {arch}" for arch in MACHINES)
        fix = "save it as an artifact (.ingot), or compile portable C (--target c)"
        raise InputError("a native library", expected=machines, got=code.features.arch, fix=fix)
    baseline = Features(code.features.arch)  # what looks whether the processor is fit runs on any
    helper, offsets = helpers(code.features)
    start = -(-len(code.blob) // 64) * 64
    symbols = dict(code.symbols) | {name: start + at for name, at in offsets.items()}
    entry = compiled(entry_ir(plan, code.features), baseline).code.result()
    linked = link([entry], baseline, prior=code.blob.ljust(start, b"\0") + helper, symbols=symbols)
    name = identifier(path.stem)
    functions = {f"{name}_run": linked.symbols[RUN], f"{name}_run_in": linked.symbols[RUN_IN]}
    functions |= {f"{name}_reset": linked.symbols[RESET]} if plan.state else {}
    first = [bytes(state_begins_at(plan) - len(plan.weights)), plan.state] if any(plan.state) else []
    library = Library(
        code.features.arch, linked.blob, functions, {k: at for k, at in code.symbols.items()},
        linked.symbols[WEIGHTS], linked.symbols[MEMORY], [plan.weights, *first], Memory.of(plan).nbytes,
    )  # fmt: skip
    match path.suffix:
        case ".so":
            parts = shared_object(library, path.name)
        case ".o":
            parts = relocatable(library)
        case _:
            parts = archive(library, f"{path.stem}.o")
    header = print_header(name, plan, *c_parameters(plan), native=str(code.features))
    atomic_write(path.with_suffix(".h"), [header.encode()])
    atomic_write(path, parts)
