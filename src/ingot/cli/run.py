"""`ingot run`: run a model once, on arrays from files or on random ones."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ingot.cli.console import check_writable, command_context, escape, out, plain_table, print_json
from ingot.cli.options import AllValues, CompileOptions, Feeds, Json, Limit, Model, ModelOptions, Sizes, grouped
from ingot.cli.sizes import inputs_of
from ingot.debug.drawing import time_text
from ingot.debug.feeds import read_feeds, write_archive
from ingot.debug.source import compile_source, open_source, runnable, with_all_values, with_dims
from ingot.driver.compile import check_runs
from ingot.support import progress
from ingot.support.errors import InputError
from ingot.support.files import atomic_write


@grouped
def run(
    model: Model,
    feed: Feeds = None,
    random: Annotated[bool, typer.Option("--random", help="Random arrays for the inputs that are not given.")] = False,
    size: Sizes = None,
    all_values: AllValues = None,
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
    ingot run model.onnx --input image=dog.png --outputs /1/Relu_output_0    a value inside
    """
    with command_context(as_json, limit):
        source = open_source(model, about.words)
        check_writable([all_values], [model])
        source = source if all_values is None else with_all_values(source)
        if source.kind != "artifact":
            check_runs(settings.target)
        compiled = runnable(compile_source(source, cache=True, **vars(settings)))
        feeds = read_feeds(compiled, feed or [])
        if random and not compiled.is_one_program:  # the given inputs select the program
            source, feeds = replace(source, weights={**source.weights, **feeds}), {}
            compiled = runnable(compile_source(source, cache=True, **vars(settings)))
            if size and not compiled.is_one_program:  # and so do its sizes
                source = with_dims(source, size)
                compiled, size = runnable(compile_source(source, cache=True, **vars(settings))), None
        names = {spec.name for spec in compiled.inputs}
        feeds |= {name: value for name, value in source.weights.items() if name in names}
        if random:
            feeds = inputs_of(source, compiled.program, size, seed, feeds)
        elif missing := [str(s) for s in compiled.inputs if s.name not in feeds]:
            raise InputError("inputs", expected=", ".join(missing), fix="pass --input NAME=FILE, or --random")
        folder = None if output_dir is None else _folder(output_dir)
        progress.report("run")
        start = time.perf_counter()
        results = compiled.run([feeds[spec.name] for spec in compiled.inputs])
        seconds = time.perf_counter() - start
        named = zip((spec.name for spec in compiled.outputs), results, strict=True)
        leaves = [leaf for name, result in named for leaf in _leaves(name, result)]
        if all_values is not None:
            write_archive(all_values, dict(leaves))
        facts = [_output(name, array, folder) for name, array in leaves]
    if as_json:
        print_json({"model": str(model), "seconds": seconds, "outputs": facts})
        return
    table = plain_table("output", "dtype", "shape", "min", "mean", "max", "file", left=("output", "file"))
    for f in facts:
        numbers = [f"{v:.6g}" if isinstance(v := f[key], float) else "" for key in ("min", "mean", "max")]
        table.add_row(escape(str(f["name"])), str(f["dtype"]), str(f["shape"]), *numbers, escape(str(f["file"] or "")))
    out.print(table)
    out.print(f"first call {time_text(seconds)}; for timings use [bold]ingot bench[/]")


def _leaves(name: str, value: Any) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of a result, with their names: for a sequence those of its members."""
    if isinstance(value, Mapping | list | tuple):
        for key, member in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _leaves(f"{name}.{key}", member)
    elif value is not None:
        array = np.asarray(value)
        yield name, array.astype(str) if array.dtype == object else array


def _output(name: str, array: np.ndarray, folder: Path | None) -> dict[str, object]:
    """Summarize an output; also write it into the folder if one is given."""
    file = None
    if folder is not None:
        file = folder / f"{name.replace('/', '_')}.npy"
        data = io.BytesIO()
        np.save(data, array)
        atomic_write(file, [data.getbuffer()])
    numeric = array.astype(np.float64) if array.size and array.dtype.kind not in "SU" else None
    numbers = (
        (None, None, None) if numeric is None else (float(numeric.min()), float(numeric.mean()), float(numeric.max()))
    )
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
        raise InputError(f"cannot create the folder {path}", got=error.strerror) from error
    return path
