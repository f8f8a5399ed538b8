"""`ingot attribute`: which elements of the inputs a score comes from."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import typer

from ingot.cli.console import check_writable, command_context, escape, out, plain_table, print_json
from ingot.cli.options import Json, Limit, ModelOptions, Threads, Uncompiled, grouped
from ingot.debug.attributions.images import SUFFIXES, read_image
from ingot.debug.attributions.page import Attributions, largest, page
from ingot.debug.feeds import Feeds, read_array, read_feeds
from ingot.debug.source import Source, compile_source, open_source
from ingot.driver.compile import Options
from ingot.language.text.tokenizer import Tokenizer
from ingot.runtime.cpu.pool import thread_count
from ingot.runtime.executor import CompiledModel
from ingot.support import progress
from ingot.support.errors import InputError
from ingot.support.files import atomic_write, open_regular
from ingot.transform.attribute.run import AttributionModel, MethodName, Settings, attribution_model


@grouped
def attribute(
    model: Uncompiled,
    feed: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", metavar="NAME=FILE", help="An input, as .npy or an image. Repeatable."),
    ] = None,
    method: Annotated[
        str, typer.Option(help="integrated_gradients, smoothgrad, gradient_x_input or occlusion.")
    ] = "integrated_gradients",
    target: Annotated[
        str | None, typer.Option(metavar="INDEX[,INDEX]", help="The score to explain; by default the largest.")
    ] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="What an input is compared with: a number or .npy. Repeatable."),
    ] = None,
    output: Annotated[
        str | None, typer.Option(metavar="NAME", help="The result to explain; by default the first.")
    ] = None,
    wrt: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Explain by this input only. Repeatable.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Points of the path, or samples with noise.")] = 50,
    mean: Annotated[str | None, typer.Option(metavar="R,G,B", help="Subtracted from an image's pixels / 255.")] = None,
    std: Annotated[str | None, typer.Option(metavar="R,G,B", help="What an image's pixels are divided by.")] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="tokenizer.json: show ids as texts.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write one self-contained page: images, tokens, bars.")] = None,
    output_dir: Annotated[Path | None, typer.Option(help="Write NAME.npy for each input into this folder.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the program (.ingot), which needs numpy alone.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Elements that are listed, largest first.")] = 10,
    threads: Threads = None,
    *,
    about: ModelOptions,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Report which elements of the inputs raise or lower a score of the model.

    \b
    ingot attribute model.onnx --input x=x.npy --target 3
    ingot attribute model.onnx --input x.png --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 --html a.html
    ingot attribute bert.onnx -i input_ids=ids.npy -i attention_mask=mask.npy --tokenizer tokenizer.json --html a.html
    """
    with command_context(as_json, limit):
        check_writable([html, save], [model])
        source = open_source(model, about.words)
        options = Options(threads=thread_count(threads))
        settings = Settings(cast(MethodName, method), output or 0, bool(baseline), steps, wrt=wrt)
        progress.report("compile")
        program = attribution_model(source.path, source.request, settings, options)
        if save is not None:
            program.save(save)
        plain = compile_source(source, threads=threads, cache=True)
        feeds = _feeds(plain, feed or [], _numbers("--mean", mean), _numbers("--std", std))
        indices = None if target is None else _target(target)
        progress.report("attribute")
        values = program(**feeds, target=indices, baseline=_baselines(program, baseline or []))
        named = dict(zip(program.wrt, values if isinstance(values, tuple) else (values,), strict=True))
        attributions = _attributions(source, method, program, named, feeds, _result(plain, feeds, output), indices)
        if output_dir is not None:
            _write(output_dir, named)
        if html is not None:
            atomic_write(html, [page(attributions, None if tokenizer is None else _token_texts(tokenizer)).encode()])
    if as_json:
        print_json(attributions.facts(top))
        return
    _print(attributions, top)


def _feeds(model: CompiledModel, texts: Sequence[str], mean: list[float], std: list[float]) -> Feeds:
    specs = {spec.name: spec for spec in model.inputs}
    feeds: Feeds = {}
    others: list[str] = []
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals and len(specs) == 1:
            (name,), path = specs, text
        if not path.lower().endswith(SUFFIXES) or name not in specs or name in feeds:
            others.append(text)
        else:
            feeds[name] = read_image(Path(path), specs[name], mean, std)
    feeds |= read_feeds(model, others)
    if missing := [str(spec) for name, spec in specs.items() if name not in feeds]:
        raise InputError("inputs", expected=", ".join(missing), fix="pass --input NAME=FILE.npy, or NAME=FILE.png")
    return feeds


def _numbers(option: str, text: str | None) -> list[float]:
    try:
        return [] if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(option, expected="numbers separated by commas", got=repr(text)) from None


def _target(text: str) -> int | tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise InputError("--target", expected="an index, or one for each axis of the scores: 3,1", got=repr(text))
    return int(text) if len(parts) == 1 else tuple(map(int, parts))


def _baselines(program: AttributionModel, texts: Sequence[str]) -> dict[str, Any] | None:
    out: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not equals and len(program.wrt) == 1:
            name = program.wrt[0]
        if name not in program.wrt or name in out:
            expected = f"NAME=NUMBER or NAME=FILE.npy, once for each of {', '.join(program.wrt)}"
            raise InputError("--baseline", expected=expected, got=repr(text))
        try:
            number = float(value)
            out[name] = int(number) if number.is_integer() else number
        except ValueError:
            out[name] = read_array(Path(value))
    return out or None


def _result(model: CompiledModel, feeds: Feeds, output: str | None) -> np.ndarray:
    names = [spec.name for spec in model.outputs]
    index = 0 if output is None else names.index(output)
    return np.asarray(model.run([feeds[spec.name] for spec in model.inputs])[index])


def _attributions(
    source: Source, method: str, program: AttributionModel, values: Mapping[str, Any], feeds: Feeds,
    result: np.ndarray, target: int | tuple[int, ...] | None,
) -> Attributions:  # fmt: skip
    """What was explained, with an axis of examples in front."""
    axis = program.batch_axis
    scores = result[None] if axis is None else np.moveaxis(result, axis, 0)
    classes = scores.shape[1:]
    if not classes:
        targets: list[Any] = [None] * len(scores)
        chosen = [float(score) for score in scores]
    else:
        targets = [int(s.argmax()) if target is None else target for s in scores]
        chosen = [float(s[t]) for s, t in zip(scores, targets, strict=True)]
    arrays = {name: np.asarray(value) for name, value in values.items()}
    inputs = {name: feeds[name] for name in values}
    if axis is None:
        arrays, inputs = ({name: a[None] for name, a in group.items()} for group in (arrays, inputs))
    return Attributions(source.name, method, inputs, arrays, targets, chosen)


def _token_texts(path: Path) -> Callable[[int], str]:
    with open_regular(path) as file:
        backend = Tokenizer.from_json(file.read().decode(), {}).backend
    return lambda token: backend.id_to_token(token) or str(token)


def _write(folder: Path, values: Mapping[str, Any]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot create the folder {folder}", got=error.strerror) from error
    for name, value in values.items():
        data = io.BytesIO()
        np.save(data, np.asarray(value))
        atomic_write(folder / f"{name.replace('/', '_')}.npy", [data.getbuffer()])


def _print(a: Attributions, top: int) -> None:
    for n, (target, score) in enumerate(zip(a.targets, a.scores, strict=True)):
        what = "score" if target is None else f"score {target}"
        out.print(f"[bold]example {n}[/]  {what}: {score:.6g}", highlight=False)
        table = plain_table("input", "element", "value", "attribution", left=("input",))
        for name, values in a.values.items():
            for index in largest(values[n], top):
                x = a.inputs[name][n][index]
                table.add_row(escape(name), str(list(index)), f"{x:.6g}", f"{values[n][index]:+.6g}")
            table.add_row(f"[dim]{escape(name)}[/]", "[dim]sum[/]", "", f"{values[n].sum():+.6g}")
        out.print(table)
