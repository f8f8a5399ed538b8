"""`ingot dump`: show the stages of a compilation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from ingot.cli.console import command_context, out, plain_table, print_json
from ingot.cli.options import CompileOptions, Json, Limit, Model, ModelOptions, Sizes, grouped
from ingot.cli.sizes import random_inputs
from ingot.debug.build import Build, build
from ingot.debug.drawing import time_text
from ingot.debug.source import Source, open_source, read_graph
from ingot.ir.show import show
from ingot.runtime import artifact
from ingot.runtime.executable import UnloadedProgram
from ingot.runtime.executor import CompiledModel
from ingot.support.errors import InputError


@grouped
def dump(
    model: Model,
    after: Annotated[
        str | None, typer.Option(metavar="PASS", help="The graph after this pass; `model` is the imported one.")
    ] = None,
    kernel: Annotated[str | None, typer.Option(metavar="NAME", help="One kernel, by its name or number.")] = None,
    llvm: Annotated[bool, typer.Option("--llvm", help="With --kernel: its LLVM IR.")] = False,
    asm: Annotated[bool, typer.Option("--asm", help="With --kernel: its assembly.")] = False,
    triton: Annotated[bool, typer.Option("--triton", help="With --kernel, for GPUs: its Triton text.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="The steps and buffers, with their offsets in memory.")] = False,
    size: Sizes = None,
    *,
    about: ModelOptions,
    settings: CompileOptions,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Show the graph after any pass, a kernel's IR, LLVM IR, assembly or Triton text, or the plan.

    Without options it lists the passes, with their times, and the kernels.

    \b
    ingot dump model.onnx
    ingot dump model.onnx --after fuse
    ingot dump model.onnx --kernel contraction_3 --asm
    ingot dump model.ingot --plan --size batch=1
    """
    with command_context(as_json, limit):
        forms = {"--llvm": llvm, "--asm": asm, "--triton": triton}
        for exclusive in ({"--after": after, "--kernel": kernel, "--plan": plan}, forms):
            if len(names := [name for name, value in exclusive.items() if value]) > 1:
                raise InputError("dump", expected=f"one of {', '.join(exclusive)}", got=" and ".join(names))
        form = next((name.removeprefix("--") for name, is_set in forms.items() if is_set), "ir")
        if form != "ir" and kernel is None:
            raise InputError(f"--{form}", expected="--kernel NAME with it", got="no kernel")
        source = open_source(model, about.words)
        built = None
        if source.kind != "artifact":
            built = build(read_graph(source), **vars(settings))
        if built is None:
            text = _dump_artifact(source, after, kernel, plan, size)
        elif kernel is not None:
            text = built.source(built.kernel(kernel), form)
        elif after is not None:
            text = show(built.graph_after(after))
        elif plan:
            text = _plan(CompiledModel(UnloadedProgram(built.program, built.threads)), size)
        else:
            _print_overview(built, as_json)
            return
    if as_json:
        print_json({"model": str(model), "text": text})
        return
    print(text)


def _dump_artifact(
    source: Source, after: str | None, kernel: str | None, plan: bool, size: Sequence[str] | None
) -> str:
    """The stages and the plan of a saved program."""
    compiled = CompiledModel(UnloadedProgram(artifact.load(source.path)))  # it may be for another machine
    if kernel is not None:
        raise InputError("--kernel", expected="the original model", got=f"{source.path}, which has machine code only")
    return _plan(compiled, size) if plan or after is None else compiled.dump(after)


def _plan(compiled: CompiledModel, size: Sequence[str] | None) -> str:
    """The plan; given sizes, also its offsets in memory."""
    if not size:
        return compiled.plan()
    feeds = random_inputs(compiled.program, None, size)
    return compiled.plan(*(array.shape for array in feeds.values()))


def _print_overview(built: Build, as_json: bool) -> None:
    passes = [(name, seconds, len(graph.nodes())) for name, seconds, graph in built.trace.stages]
    kernels = [kernel.name for kernel in built.trace.kernels]
    if as_json:
        rows = [{"name": n, "seconds": s, "nodes": c} for n, s, c in passes]
        print_json({"nodes": len(built.graph.nodes()), "passes": rows, "kernels": kernels})
        return
    table = plain_table("after pass", "time", "nodes", left=("after pass",))
    table.add_row("model", "", str(len(built.graph.nodes())))
    for name, seconds, nodes in passes:
        table.add_row(name, time_text(seconds), str(nodes))
    out.print(table)
    out.print(f"\n[dim]kernels[/]  {' '.join(kernels)}", highlight=False)
    out.print("\n[dim]see one with[/] --after PASS, --kernel NAME (--llvm, --asm or --triton), --plan", highlight=False)
