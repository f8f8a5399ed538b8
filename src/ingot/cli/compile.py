"""`ingot compile`: compile a model to one file."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ingot.cli.console import check_writable, command_context, escape, out, print_json
from ingot.cli.options import CompileOptions, Json, Limit, ModelOptions, Uncompiled, grouped
from ingot.debug.drawing import bytes_text, time_text
from ingot.debug.source import compile_source, open_source
from ingot.runtime.executable import LIBRARY_SUFFIXES
from ingot.runtime.executor import CompiledModel
from ingot.support import progress
from ingot.support.errors import InputError


@grouped
def compile_(
    model: Uncompiled,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write; by default MODEL with the suffix .ingot.")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="For target c: write the weights to a separate file, to pass to each call.")
    ] = None,
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
    ingot compile model.onnx --target cpu:aarch64   for another machine, from any machine
    ingot compile model.onnx -o net.so              a native library and its header, for C and others (also .o, .a)
    ingot compile model.onnx --target c -o net.c    one C99 file and its header, without any library
    """
    with command_context(as_json, limit):
        source = open_source(model, about.words)
        if source.kind == "artifact":
            raise InputError(f"{model}", expected="the file of a model", got="a compiled program", fix="ingot run")
        suffix = ".c" if settings.target.partition(":")[0] == "c" else ".ingot"
        path = output or model.with_suffix(suffix)
        check_writable([path, weights], [model])
        start = time.perf_counter()
        if path.suffix in LIBRARY_SUFFIXES:  # its functions run on their caller's thread
            if settings.threads not in (None, 1):
                raise InputError("--threads", expected="1 for a native library", got=settings.threads)
            settings = replace(settings, threads=1)
        compiled = compile_source(source, cache=cache, **vars(settings))
        seconds = time.perf_counter() - start
        progress.report("save")
        compiled.save(path, weights=weights)
    facts = _facts(compiled) | {"seconds": seconds, "output": str(path), "file_bytes": path.stat().st_size}
    if as_json:
        print_json(facts)
        return
    out.print(f"[bold]{escape(str(path))}[/]  {bytes_text(path.stat().st_size)}, compiled in {time_text(seconds)}")
    _print_facts(compiled)


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


def _print_facts(compiled: CompiledModel) -> None:
    program = compiled.program
    state = [s.spec for s in program.state]
    for name, specs in (("in", program.inputs), ("out", program.outputs), ("state", state)):
        for spec in specs:
            out.print(f"[dim]{name:>3}[/]  {escape(str(spec))}", highlight=False)
    kernels = len({s.kernel for s in program.steps})
    sizes = f"{bytes_text(program.code_bytes)} of code, {bytes_text(program.weights.nbytes)} of weights"
    threads = f", {compiled.threads} threads" if program.device == "cpu" else ""
    out.print(f"{len(program.steps)} steps, {kernels} kernels, {sizes}{threads}", highlight=False)
    out.print(f"for {program.features}", highlight=False)
