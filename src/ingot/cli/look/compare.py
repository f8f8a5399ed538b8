"""`ingot compare`: check whether a compiled model is right, and find the cause if it is not."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ingot.cli.console import MISMATCH, check_writable, command_context, escape, out, plain_table, print_json
from ingot.cli.options import AllValues, CompileOptions, Feeds, Json, Limit, ModelOptions, Sizes, Uncompiled, grouped
from ingot.debug.comparison import compare as comparing
from ingot.debug.feeds import parse_sizes, write_archive
from ingot.debug.source import open_source, with_all_values
from ingot.driver.compile import check_runs
from ingot.support.errors import InputError

_MAX_SHOWN_CHECKS = 40  # checks that agree, the worst of them


@grouped
def compare(
    model: Uncompiled,
    program: Annotated[Path | None, typer.Option(help="Check this .ingot file instead of compiling now.")] = None,
    feed: Feeds = None,
    all_values: AllValues = None,
    size: Sizes = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Allowed error, relative to the largest magnitude; 1e-4 for float32.")
    ] = None,
    interpreter: Annotated[
        bool, typer.Option("--interpreter/--no-interpreter", help="Compare with Ingot's interpreter too (slow).")
    ] = True,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs.")] = 0,
    *,
    about: ModelOptions,
    settings: CompileOptions,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Check a compiled model on random inputs at several sizes, or on yours, and name the cause if it is wrong.

    The references are the model's own framework, if it is installed (ONNX Runtime, PyTorch, LiteRT, XLA, TensorFlow,
    Keras, torch.jit), and Ingot's interpreter.

    Elements that differ by rounding alone, according to float64, count as equal. If outputs differ, it names the first
    op that is wrong, and the import, pass, rewrite rule or kernel responsible.

    \b
    ingot compare model.onnx
    ingot compare model.onnx --size batch=1,length=128 --size batch=3,length=7
    ingot compare model.onnx --input image=dog.png --input mask=mask.npy
    ingot compare model.onnx --all-values values.npz    every value of the model, not its outputs alone
    ingot compare model.onnx --program model.ingot
    ingot compare scripted.pt --inputs x=f32:1,? --constant rate=16000
    """
    with command_context(as_json, limit):
        if program is not None and all_values is not None:
            fix = "`ingot run --all-values` of both models writes what to compare"
            raise InputError(
                "--all-values", expected="no --program: a saved one has its outputs alone", got=program, fix=fix
            )
        source = open_source(model, about.words)
        check_writable([all_values], [model])
        source = source if all_values is None else with_all_values(source)
        if program is None:
            check_runs(settings.target)
        comparison = comparing.compare(
            source, program=program, sizes=parse_sizes(size or []), tolerance=tolerance, interpreter=interpreter,
            seed=seed, feed=feed or [], **vars(settings),
        )  # fmt: skip
        if all_values is not None:
            write_archive(all_values, comparison.values)
    if as_json:
        checks = [asdict(c) for c in comparison.checks]
        blame = None if comparison.blame is None else asdict(comparison.blame)
        print_json(
            {"model": str(model), "ok": comparison.ok, "checks": checks, "refused": comparison.refused, "blame": blame}
        )
    else:
        _print_comparison(comparison)
    if not comparison.ok:
        raise typer.Exit(MISMATCH)


def _print_comparison(comparison: comparing.Comparison) -> None:
    table = plain_table("sizes", "against", "output", "error", "relative", "", left=("sizes", "against", "output", ""))
    agreeing = sorted((c for c in comparison.checks if c.agreement.ok), key=lambda c: -c.agreement.relative)
    hidden = {id(c) for c in agreeing[_MAX_SHOWN_CHECKS:]}
    for c in comparison.checks:
        if id(c) in hidden:
            continue
        a = c.agreement
        verdict = f"{'[green]ok[/]' if a.ok else '[bold red]differs[/]'} {escape(a.words)}".strip()
        sizes = ", ".join(f"{name}={size}" for name, size in c.sizes.items()) or "fixed"
        table.add_row(sizes, escape(c.reference), escape(c.output), f"{a.error:.2e}", f"{a.relative:.1e}", verdict)
    out.print(table)
    if hidden:
        out.print(f"[dim]and {len(hidden)} that agree better (--json has all)[/]")
    for text in comparison.refused:
        out.print(f"not compared: {escape(text)}", highlight=False)
    if not comparison.ok and comparison.blame is None:
        out.print("\nnobody is to blame: the differences are of rounding size; give a larger --tolerance")
    if comparison.blame is not None:
        out.print(f"\n[bold red]to blame:[/] {escape(str(comparison.blame))}", highlight=False)
