"""`ingot certify`: prove or refute a property of a model."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from ingot.cli.console import MISMATCH, check_writable, command_context, escape, out, print_json
from ingot.cli.options import Dims, Json, Limit, Precision, Threads, Uncompiled
from ingot.debug.source import Words, open_source
from ingot.driver.compile import Options
from ingot.runtime.cpu.pool import thread_count
from ingot.support.files import atomic_write
from ingot.transform.bounds.search.certify import PROVED, certify_model
from ingot.transform.bounds.search.vnnlib import read_property


def certify(
    model: Uncompiled,
    vnnlib: Annotated[Path, typer.Option(help="The property, in VNN-LIB 1 or 2: what must not happen.")],
    seconds: Annotated[float, typer.Option(min=0.1, help="The time to search.")] = 60,
    method: Annotated[
        str, typer.Option(help="How boxes are bounded: auto, crown, crown-ibp, forward or ibp.")
    ] = "auto",
    numerics: Annotated[
        bool, typer.Option("--numerics", help="For the program with its rounding, not only for real numbers.")
    ] = False,
    counterexample: Annotated[
        Path | None, typer.Option(help="Where to write the input of a counterexample, as .npy.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the attack's starting points.")] = 0,
    precision: Precision = "float32",
    threads: Threads = None,
    dim: Dims = None,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Prove or refute a property of a model: an attack first, then bounds over boxes of inputs that are split.

    A proof holds for the network over real numbers, and with --numerics for the program: only then it says certified.
    Exit code 0: proved; 1: refuted or unknown.

    \b
    ingot certify model.onnx --vnnlib property.vnnlib
    ingot certify model.onnx --vnnlib property.vnnlib --numerics --seconds 300 --counterexample x.npy
    """
    with command_context(as_json, limit):
        check_writable([counterexample], [model, vnnlib])
        source = open_source(model, Words(dim or []))
        verdict = certify_model(
            source.path, read_property(vnnlib), seconds=seconds, method=method, numerics=numerics,
            dynamic=source.dynamic, seed=seed, options=Options(threads=thread_count(threads), precision=precision),
        )  # fmt: skip
        point = verdict.counterexample
        if counterexample is not None and point is not None:
            content = io.BytesIO()
            np.save(content, point[0])
            atomic_write(counterexample, [content.getvalue()])
    if as_json:
        printed_point = (
            None if point is None else {"x": point[0].reshape(-1).tolist(), "y": point[1].reshape(-1).tolist()}
        )
        print_json(
            {"model": str(model), "property": str(vnnlib), "answer": verdict.answer, "numerics": numerics,
             "certified": verdict.answer == PROVED and numerics, "reason": verdict.reason, "boxes": verdict.boxes,
             "seconds": verdict.seconds, "counterexample": printed_point}
        )  # fmt: skip
    else:
        out.print(escape(str(verdict)), highlight=False)
        if point is not None:
            x, y = (np.array2string(v.reshape(-1), threshold=12, precision=6) for v in point)
            out.print(f"  x = {escape(x)}\n  y = {escape(y)}", highlight=False)
    if verdict.answer != PROVED:
        raise typer.Exit(MISMATCH)
