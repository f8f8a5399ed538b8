"""`ingot compile`: compile a model to one file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from ingot.api.language_model import LanguageModel
from ingot.cli.console import check_writable, command_context, escape, out, print_json
from ingot.cli.language.options import CACHE_OPTION, Context
from ingot.cli.options import CompileOptions, Json, Limit, ModelOptions, Uncompiled, grouped
from ingot.debug.drawing import bytes_text, time_text
from ingot.debug.source import compile_source, open_source
from ingot.driver.recognize import LANGUAGE
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
    context: Context = None,
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
    ingot compile model.gguf --context 8192         a language model, for ingot chat
    ingot compile model.onnx --target cpu:aarch64   for another machine, from any machine
    ingot compile model.onnx --target c -o net.c    one C99 file and its header, without any library
    """
    with command_context(as_json, limit):
        source = open_source(model, about.words)
        if source.kind == "artifact":
            raise InputError(f"{model}", expected="the file of a model", got="a compiled program", fix="ingot run")
        if (context is not None or cache_type is not None) and source.kind not in LANGUAGE:
            raise InputError("--context, --cache-type", expected="none, but for language models", got="a value")
        if source.kind in LANGUAGE and source.dynamic:
            raise InputError("--dim", expected="none for a language model", got=about.dim, fix="--context TOKENS")
        suffix = ".c" if settings.target.partition(":")[0] == "c" else ".ingot"
        path = output or model.with_suffix(suffix)
        check_writable([path, weights], [model])
        start = time.perf_counter()
        if source.kind in LANGUAGE:
            compiled = _language_model(model, context, cache_type, settings)
        else:
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


def _language_model(model: Path, context: int | None, cache: str | None, settings: CompileOptions) -> CompiledModel:
    """With its tokenizer and chat template, as `ingot chat` takes it."""
    if settings.fast_math:
        raise InputError("--fast-math", expected="none for a language model", got="it")
    lm = LanguageModel(
        model, context=context, cache=cache or "float16", target=settings.target, precision=settings.precision,
        threads=settings.threads,
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
