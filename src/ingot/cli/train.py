"""`ingot train`: train an ONNX model on arrays from a file."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ingot import optim
from ingot.cli.console import check_writable, command_context, escape, out, print_json
from ingot.cli.options import Dims, Json, Limit, Target, Threads
from ingot.debug.drawing import time_text
from ingot.debug.feeds import read_archive
from ingot.debug.source import Words, open_source
from ingot.driver.compile import check_runs
from ingot.runtime.dtypes import numpy_dtype
from ingot.runtime.training import TrainingStep
from ingot.support import progress
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError
from ingot.support.files import atomic_write
from ingot.transform.train.loop import Plan, curve
from ingot.transform.train.loop import run as run_epochs
from ingot.transform.train.run import CompiledStep, train_model

_MEMORY = "A limit. Below 1: a fraction of the bytes saved for the backward pass; else the bytes of the arena."


def train(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.")],
    data: Annotated[Path, typer.Option(help="A .npz file: an array for each input and the target, samples first.")],
    loss: Annotated[str, typer.Option(help="cross_entropy, nll, mse, l1, huber, bce_with_logits or kl_div.")],
    optimizer: Annotated[str, typer.Option(help="sgd, adam, adamw or lion.")] = "adamw",
    lr: Annotated[float | None, typer.Option(min=0, help="Learning rate; by default the optimizer's.")] = None,
    weight_decay: Annotated[float | None, typer.Option(min=0, help="By default the optimizer's.")] = None,
    momentum: Annotated[float | None, typer.Option(min=0, help="For sgd.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data.")] = 1,
    batch: Annotated[int, typer.Option(min=1, help="Samples of a call.")] = 32,
    labels: Annotated[str | None, typer.Option(help="The array of the target, if more than one is unused.")] = None,
    metric: Annotated[list[str] | None, typer.Option(help="accuracy, mse or l1. Repeatable.")] = None,
    trainable: Annotated[list[str] | None, typer.Option(help="A pattern of parameters to train. Repeatable.")] = None,
    clip_norm: Annotated[float | None, typer.Option(help="Bound on the global norm of the gradients.")] = None,
    accumulate: Annotated[int, typer.Option(min=1, help="Calls whose mean gradient is one update.")] = 1,
    precision: Annotated[
        str, typer.Option(help="Operands of products: float32, bfloat16, float16, tf32, ieee.")
    ] = "float32",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the order of samples and of dropout.")] = 0,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="By default MODEL.trained.onnx.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="The file for checkpoints.")] = None,
    every: Annotated[int, typer.Option(min=1, help="Calls between checkpoints.")] = 100,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint if it exists.")] = False,
    picture: Annotated[Path | None, typer.Option("--curve", help="Draw the loss as an SVG file.")] = None,
    memory: Annotated[float | None, typer.Option(help=_MEMORY)] = None,
    threads: Threads = None,
    target: Target = "native",
    dim: Dims = None,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Train an ONNX model on arrays, and write the trained model.

    With --resume, an interrupted run continues from its checkpoint, and ends with the same bits as an uninterrupted
    one.

    \b
    ingot train model.onnx --data digits.npz --loss cross_entropy --metric accuracy --epochs 5
    ingot train model.onnx --data d.npz --loss mse --optimizer sgd --momentum 0.9 --lr 0.1 --curve loss.svg
    ingot train model.onnx --data d.npz --loss mse --epochs 50 --checkpoint c.safetensors --resume
    """
    with command_context(as_json, limit):
        if resume and checkpoint is None:
            raise InputError("--resume", expected="a checkpoint", got="none", fix="--checkpoint FILE.safetensors")
        source = open_source(model, Words(dim or []))
        trained_path = output or model.with_suffix(".trained.onnx")
        check_writable([trained_path, checkpoint, picture], [model, data])
        optimizer_ = _optimizer(optimizer, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        if source.kind != "onnx":
            raise InputError(f"model {model}", expected="an ONNX file", got=source.kind, fix="ingot.train in Python")
        check_runs(target)
        arrays = read_archive(data)
        progress.report("compile")
        step: CompiledStep = train_model(
            source.path, loss, optimizer_, None, (), metrics=metric or (), trainable=trainable, clip_norm=clip_norm,
            accumulate=accumulate, precision=precision, target=target, dynamic=source.dynamic, threads=threads,
            seed=seed, memory=memory,
        )  # fmt: skip
        finished = _run(step, Plan(_data(step, arrays, data, labels), batch, epochs, seed, checkpoint, every), resume)
        atomic_write(trained_path, [step.trained().SerializeToString()])
        if picture is not None:
            atomic_write(picture, [curve(finished.losses, model.name).encode()])
    _print_run(finished, trained_path, step.program.meta["memory"] if memory is not None else None, as_json)


@dataclass(frozen=True)
class _TrainingRun:
    """A finished run. losses: those of all calls. measured: the metrics of the last call. seconds: the total time."""

    losses: Sequence[float]
    measured: Mapping[str, float]
    seconds: float


def _run(step: CompiledStep | TrainingStep, plan: Plan, resume: bool) -> _TrainingRun:
    start = time.perf_counter()
    last: dict[str, float] = {}

    def report(call: int, value: float, measured: Mapping[str, float]) -> None:
        last.update(measured)
        numbers = {"loss": value, **measured}
        progress.report(" ".join(f"{k} {v:.4g}" for k, v in numbers.items()), call, plan.calls)

    losses = run_epochs(step, plan, report, resume=resume)
    return _TrainingRun(losses, last, time.perf_counter() - start)


def _print_run(run: _TrainingRun, path: Path, memory: str | None, as_json: bool) -> None:
    first, last, calls = run.losses[0], run.losses[-1], len(run.losses)
    nonfinite_call = next((call for call, loss in enumerate(run.losses, 1) if not math.isfinite(loss)), None)
    if as_json:
        facts = {"model": str(path), "calls": calls, "seconds": run.seconds, "first_loss": first, "loss": last}
        summary = {**facts, **run.measured, "first_not_finite": nonfinite_call}
        print_json(summary if memory is None else {**summary, "memory": memory})
        return
    measured = "".join(f", {k} {v:.4g}" for k, v in run.measured.items())
    out.print(f"loss {first:.4g} -> {last:.4g}{measured} in {calls} calls, {time_text(run.seconds)}")
    if nonfinite_call is not None:
        out.print(f"the loss is not finite from call {nonfinite_call} on: step.first_nan in Python names the op")
    if memory is not None:
        out.print(f"memory: {memory}", highlight=False)
    out.print(f"[bold]{escape(str(path))}[/]", highlight=False)


def _optimizer(name: str, settings: Mapping[str, float | None]) -> optim.Optimizer:
    if name not in optim.OPTIMIZERS:
        raise InputError("--optimizer", expected=f"one of {', '.join(optim.OPTIMIZERS)}", got=name)
    optimizer_class = optim.OPTIMIZERS[name]
    arguments: dict[str, Any] = {k: v for k, v in settings.items() if v is not None}
    if "momentum" in arguments and optimizer_class is not optim.SGD:
        raise InputError("--momentum", expected="the optimizer sgd", got=name)
    return optimizer_class(**arguments)


def _data(
    step: CompiledStep | TrainingStep, arrays: Mapping[str, np.ndarray], path: Path, labels: str | None
) -> dict[str, np.ndarray]:
    """The arrays by the step's inputs, in their dtypes. The target is the array that the model's inputs do not use."""
    specs = step.inputs[:-1]  # the last is the learning rate
    *model_inputs, target = (s.name for s in specs)
    unused = [name for name in arrays if name not in model_inputs]
    if labels is None and target not in arrays and len(unused) > 1:
        got = ", ".join(unused)
        raise InputError(f"data {path}", expected="one array besides the inputs", got=got, fix=f"--labels {unused[0]}")
    name = labels or (unused[0] if len(unused) == 1 else target)
    if missing := [n for n in (*model_inputs, name) if n not in arrays]:
        raise InputError(f"data {path}", expected=f"arrays named {', '.join(missing)}", got=", ".join(arrays))
    return {s.name: _as_type(arrays[n], s.dtype) for s, n in zip(specs, (*model_inputs, name), strict=True)}


def _as_type(array: np.ndarray, dtype: str) -> np.ndarray:
    """The array in the dtype of the step's input, if that is of the same kind or a more general one and represents all
    values; else unchanged, so that the step refuses it."""
    declared = numpy_dtype(dtype)
    if array.dtype == declared or not np.can_cast(array.dtype, declared, "same_kind"):
        return array
    converted = array.astype(declared)
    return converted if array.dtype.kind == "f" or np.array_equal(converted, array) else array
