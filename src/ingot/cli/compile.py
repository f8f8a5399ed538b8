"""`ingot compile`: compile a model to one file."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ingot.api.language_model import LanguageModel
from ingot.cli.console import check_writable, command_context, err, escape, machine_line, out, print_json
from ingot.cli.language.options import CACHE_OPTION, Adapters, CacheMemory, Context, Sequences, scaled_adapters
from ingot.cli.options import CompileOptions, Json, Limit, Model, ModelOptions, grouped
from ingot.cli.sizes import random_inputs
from ingot.debug.drawing import bytes_text, time_text
from ingot.debug.source import Source, compile_source, open_source
from ingot.driver.compile import file_sizes
from ingot.driver.open import open_model
from ingot.driver.recognize import LANGUAGE
from ingot.ir.interp import interpret
from ingot.ir.node import Input
from ingot.pipeline.target import features_of
from ingot.runtime.cpu.pool import threads_text
from ingot.runtime.executable import LIBRARY_SUFFIXES
from ingot.runtime.executor import CompiledModel
from ingot.support import progress
from ingot.support.errors import InputError

# names that promise what a program is not, and what writes such files
_WRITTEN_BY = {
    ".c": "--target c writes C", ".wasm": "--target wasm writes a folder", ".mlir": "ingot export writes it",
    ".tflite": "ingot export writes it",
}  # fmt: skip


@grouped
def compile_(
    model: Model,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write; by default MODEL with the suffix .ingot.")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="For target c: write the weights to a separate file, to pass to each call.")
    ] = None,
    example: Annotated[
        bool,
        typer.Option(
            "--example",
            help="For target c: write a main.c with a sample, and a Makefile that runs it (QEMU, for a core).",
        ),
    ] = False,
    adapter: Adapters = None,
    context: Context = None,
    sequences: Sequences = None,
    cache_memory: CacheMemory = None,
    cache_type: Annotated[str | None, CACHE_OPTION] = None,
    cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Use and fill the disk cache.")] = True,
    *,
    about: ModelOptions,
    settings: CompileOptions,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Compile a model to one file, which runs on any CPU with the same vector extensions.

    Dynamic sizes (batch, length) stay dynamic: the program takes any of them.

    \b
    ingot compile model.onnx                        writes model.ingot
    ingot compile model.onnx -o fast.ingot --dim batch=1
    ingot compile model.onnx --dim length=1:512     length is dynamic, at most 512
    ingot compile model.gguf --context 8192         a language model, for ingot chat; --sequences 8: for ingot serve
    ingot compile model.onnx --target cpu:aarch64   for another machine, from any machine
    ingot compile model.onnx -o net.so              a native library and its header, for C and others (also .o, .a)
    ingot compile model.ingot -o net.so             the same, of a compiled program
    ingot compile model.onnx --target c -o net.c    one C99 file and its header, without any library
    ingot compile model.onnx --target wasm -o net   a folder for browsers and node: WebAssembly in an ES module
    ingot compile model.tflite --target c:cortex-m4 -o net/net.c --example      then: make -C net run
    """
    with command_context(as_json, limit):
        source = open_source(model, about.words)
        if source.kind == "artifact" and (output is None or output.suffix not in LIBRARY_SUFFIXES):
            fix = f"ingot run; it may become a native library: -o FILE{LIBRARY_SUFFIXES[0]}"
            raise InputError(f"{model}", expected="the file of a model", got="a compiled program", fix=fix)
        of_language = (adapter or None, context, cache_type, sequences, cache_memory)
        if any(value is not None for value in of_language) and source.kind not in LANGUAGE:
            raise InputError(
                "--adapter, --context, --cache-type, --sequences, --cache-memory",
                expected="none, but for language models",
                got="a value",
            )
        if source.kind in LANGUAGE and source.dynamic:
            raise InputError("--dim", expected="none for a language model", got=about.dim, fix="--context TOKENS")
        target = settings.target.partition(":")[0]
        is_c = target == "c"
        suffix = {"c": ".c", "wasm": ".wasm-package", "verilog": ".circuit"}.get(target, ".ingot")
        path = output or model.with_suffix(suffix)
        if suffix == ".ingot" and path.suffix in _WRITTEN_BY:
            fix = _WRITTEN_BY[path.suffix]
            raise InputError("a program's file", expected="a name such as FILE.ingot", got=path.name, fix=fix)
        _check_c(path, weights, example, settings.target)
        if example:  # a folder of files
            path.parent.mkdir(parents=True, exist_ok=True)
        check_writable([None if target in ("wasm", "verilog") else path, weights], [model])  # they write folders
        sizes = file_sizes(source.path, source.request, settings.target)
        source = replace(source, dims={**source.dims, **sizes})
        start = time.perf_counter()
        if path.suffix in LIBRARY_SUFFIXES:  # its functions run on their caller's thread
            if settings.threads not in (None, 1):
                raise InputError("--threads", expected="1 for a native library", got=settings.threads)
            settings = replace(settings, threads=1)
        if source.kind in LANGUAGE:
            compiled = _language_model(model, adapter, context, cache_type, sequences, cache_memory, settings)
        else:
            compiled = compile_source(source, cache=cache, **vars(settings))
        seconds = time.perf_counter() - start
        progress.report("save")
        compiled.save(path, weights=weights)
        firmware = _firmware(compiled, path, weights) if is_c else {}
        if example:
            progress.report("example")
            _write_example(source, compiled, path)
    facts = _facts(compiled) | {"seconds": seconds, "output": str(path), "file_bytes": _file_bytes(path)} | firmware
    if as_json:
        print_json(facts | {"sizes_from_file": dict(sizes)})
        return
    if sizes:
        fixed, (first, *_) = ", ".join(f"{name}={size}" for name, size in sizes.items()), sizes
        err.print(
            f"note: sizes that the file leaves open are as its tensors have them: {escape(fixed)}", highlight=False
        )
        err.print(f"      (--dim {escape(first)}=SIZE for another)", highlight=False)
    what = " of source" if is_c else ""
    out.print(f"[bold]{escape(str(path))}[/]  {bytes_text(_file_bytes(path))}{what}, compiled in {time_text(seconds)}")
    _print_facts(compiled)
    if is_c:
        _print_firmware(facts)
    if example:
        out.print(f"run the example: [bold]make -C {escape(str(path.parent))} run[/]", highlight=False)


def _check_c(path: Path, weights: Path | None, example: bool, target: str) -> None:
    """Raise InputError for options of C programs that do not fit each other, before a model is compiled."""
    is_c = target.partition(":")[0] == "c"
    for option, used in (("--example", example), ("--weights", weights is not None)):
        if used and not is_c:
            raise InputError(
                option, expected="a program in C", got=f"--target {target}", fix="--target c or c:cortex-m4"
            )
    if is_c and path.suffix != ".c":
        raise InputError("a file for C", expected="a name that ends in .c", got=path.name)
    if not example:
        return
    if weights is not None:
        raise InputError("--example", expected="the weights in the source", got="--weights")
    from ingot.pipeline.functions.firmware import example_paths  # most calls compile for no microcontroller

    example_paths(features_of(target), path)


def _firmware(compiled: CompiledModel, path: Path, weights: Path | None) -> dict[str, object]:
    """What a program in C takes of a machine's flash and RAM."""
    from ingot.pipeline.c import TARGET

    f = TARGET.footprint(compiled.program, path, weights is not None)
    return {
        "flash": {"code_bytes": f.code, "compiler": f.compiler, "weights_bytes": f.weights},
        "ram": {"arena_bytes": f.arena, "state_bytes": f.state},
    }


def _write_example(source: Source, compiled: CompiledModel, path: Path) -> None:
    """Write the files that run the program on random inputs, with the interpreter's results."""
    from ingot.pipeline.c import TARGET

    opened = open_model(source.path, source.request)
    feeds = random_inputs(compiled.program, opened.graph, None)
    values = {**feeds, **opened.state}
    arguments = [values[n.op.label] for n in opened.graph.inputs if isinstance(n.op, Input)]
    results = [np.asarray(r) for r in interpret(opened.graph, arguments)][len(opened.state) :]
    TARGET.write_example(compiled.program, path, [feeds[s.name] for s in compiled.inputs], results)


def _file_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in ([path] if path.is_file() else path.iterdir()))


def _language_model(
    model: Path,
    adapters: list[str] | None,
    context: int | None,
    cache: str | None,
    sequences: int | None,
    cache_memory: float | None,
    settings: CompileOptions,
) -> CompiledModel:
    """With its tokenizer and chat template, as `ingot chat` takes it."""
    if settings.fast_math:
        raise InputError("--fast-math", expected="none for a language model", got="it")
    lm = LanguageModel(
        model, adapters=scaled_adapters(adapters), context=context, cache=cache or "float16",
        target=settings.target, precision=settings.precision,
        activations=settings.activations, threads=settings.threads, sequences=sequences,
        cache_bytes=None if cache_memory is None else int(cache_memory * (1 << 20)),
    )  # fmt: skip
    return lm.program


def _facts(compiled: CompiledModel) -> dict[str, object]:
    program = compiled.program
    return {
        "inputs": [str(s) for s in program.inputs],
        "outputs": [str(s) for s in program.outputs],
        "state": [str(s.spec) for s in program.state],
        "threads": compiled.threads,
        "steps": len(program.steps),
        "kernels": len({s.kernel for s in program.steps}),
        "code_bytes": program.code_bytes,
        "weights_bytes": program.weights.nbytes,
        "isa": [program.features.arch, *program.features.features],
    }


def _print_firmware(facts: Mapping[str, Any]) -> None:
    flash, ram = facts["flash"], facts["ram"]
    code = flash["code_bytes"]
    compiler = flash["compiler"].split()[0]
    text = f"unknown bytes of code ({f'{compiler} fails' if shutil.which(compiler) else f'no {compiler} here'})"
    if code is not None:
        text = f"{bytes_text(code)} of code ({flash['compiler']})"
    out.print(f"flash {text}, {bytes_text(flash['weights_bytes'])} of weights", highlight=False)
    state = f", {bytes_text(ram['state_bytes'])} of state" if ram["state_bytes"] else ""
    out.print(f"RAM   {bytes_text(ram['arena_bytes'])} of arena{state}", highlight=False)


def _print_facts(compiled: CompiledModel) -> None:
    program = compiled.program
    state = [s.spec for s in program.state]
    for name, specs in (("in", program.inputs), ("out", program.outputs), ("state", state)):
        for spec in specs:
            out.print(f"[dim]{name:>3}[/]  {escape(str(spec))}", highlight=False)
    kernels = len({s.kernel for s in program.steps})
    sizes = f"{bytes_text(program.code_bytes)} of code, {bytes_text(program.weights.nbytes)} of weights"
    threads = f", {threads_text(compiled.threads)}" if program.device == "cpu" else ""
    if program.features.target_name == "c":
        sizes = "one function"
    out.print(f"{len(program.steps)} steps, {kernels} kernels, {sizes}{threads}", highlight=False)
    out.print(f"for {machine_line(program.features)}", highlight=False)
