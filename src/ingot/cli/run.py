"""`ingot run`: a model once, on arrays from files or random ones."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from ingot.cli.console import escape, out, plain_table, presented, print_json
from ingot.cli.options import CompileOptions, Json, Limit, Model, ModelOptions, Sizes, grouped
from ingot.cli.sizes import inputs_of
from ingot.debug.drawing import time_text
from ingot.debug.feeds import read_feeds
from ingot.debug.source import compile_source, open_source, runnable
from ingot.driver.compile import check_runs
from ingot.support import progress
from ingot.support.errors import InputError
from ingot.support.files import atomic_write


@grouped
def run(
    model: Model,
    feed: Annotated[
        list[str] | None, typer.Option("--input", "-i", metavar="NAME=FILE", help="An input, as .npy. Repeatable.")
    ] = None,
    random: Annotated[bool, typer.Option("--random", help="Random arrays for the inputs that are not given.")] = False,
    size: Sizes = None,
    output_dir: Annotated[Path | None, typer.Option(help="Write every output as NAME.npy into this folder.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs.")] = 0,
    *,
    about: ModelOptions,
    settings: CompileOptions,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Run a model once, on arrays from files or on random ones.

    \b
    ingot run model.ingot --input x=x.npy --output-dir results
    ingot run model.onnx --random --size batch=4
    """
    with presented(as_json, limit):
        source = open_source(model, about.words)
        if source.kind != "artifact":
            check_runs(settings.target)
        compiled = runnable(compile_source(source, cache=True, **vars(settings)))
        feeds = read_feeds(compiled.program, feed or [])
        if random:
            feeds = inputs_of(source, compiled.program, size, seed) | feeds
        elif missing := [str(s) for s in compiled.inputs if s.name not in feeds]:
            raise InputError("inputs", expected=", ".join(missing), fix="pass --input NAME=FILE.npy, or --random")
        folder = None if output_dir is None else _folder(output_dir)
        progress.report("run")
        began = time.perf_counter()
        result = compiled(**feeds)
        seconds = time.perf_counter() - began
        results = [np.asarray(r) for r in (result if isinstance(result, tuple) else (result,))]
        facts = [_output(s.name, r, folder) for s, r in zip(compiled.outputs, results, strict=True)]
    if as_json:
        print_json({"model": str(model), "seconds": seconds, "outputs": facts})
        return
    table = plain_table("output", "dtype", "shape", "min", "mean", "max", "file", left=("output", "file"))
    for f in facts:
        numbers = [f"{v:.6g}" if isinstance(v := f[key], float) else "" for key in ("min", "mean", "max")]
        table.add_row(escape(str(f["name"])), str(f["dtype"]), str(f["shape"]), *numbers, escape(str(f["file"] or "")))
    out.print(table)
    out.print(f"first call {time_text(seconds)}; for timings use [bold]ingot bench[/]")


def _output(name: str, array: np.ndarray, folder: Path | None) -> dict[str, object]:
    """An output's summary; written into the folder if there is one."""
    file = None
    if folder is not None:
        file = folder / f"{name.replace('/', '_')}.npy"
        data = io.BytesIO()
        np.save(data, array)
        atomic_write(file, [data.getbuffer()])
    some = array.astype(np.float64) if array.size else None
    numbers = (None, None, None) if some is None else (float(some.min()), float(some.mean()), float(some.max()))
    facts = dict(zip(("min", "mean", "max"), numbers, strict=True))
    return {
        "name": name,
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        "file": None if file is None else str(file),
        **facts,
    }


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {path}", got=error.strerror) from error
    return path
