"""Options that several commands share, and groups of options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from ingot.debug.source import Words
from ingot.support.dataclass import dataclass
from ingot.support.flags import MAX_THREADS

_MODEL_FORMATS = "ONNX, PyTorch (.pt2), TorchScript, StableHLO, TensorFlow, TFLite, Keras or GGUF"
Model = Annotated[Path, typer.Argument(metavar="MODEL", help=f"{_MODEL_FORMATS}, or a compiled .ingot file.")]
Uncompiled = Annotated[Path, typer.Argument(metavar="MODEL", help=f"{_MODEL_FORMATS}.")]
Threads = Annotated[int | None, typer.Option(min=1, max=MAX_THREADS, help="Threads; by default one per physical core.")]
Dims = Annotated[
    list[str] | None,
    typer.Option(
        "--dim", metavar="NAME=SIZE", help="Compile for one size (batch=1, x:2=48) or range (n=1:512). Repeatable."
    ),
]
Constants = Annotated[
    list[str] | None,
    typer.Option(
        "--constant", metavar="NAME=VALUE",
        help="Fix an input to a value: 16000, [1,2] or FILE.npy; or FILE.safetensors for several. Repeatable.",
    ),
]  # fmt: skip
Signature = Annotated[str | None, typer.Option(metavar="NAME", help="The signature of a SavedModel or TFLite file.")]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--inputs", metavar="NAME[=SHAPE]", help="A tensor to use as input: x, x=?,224,3, x=f32:?,8. Repeatable."
    ),
]
Outputs = Annotated[
    list[str] | None,
    typer.Option(
        "--outputs", metavar="NAME", help="Compile only this output, of ONNX also an inner value. Repeatable."
    ),
]
Feeds = Annotated[
    list[str] | None,
    typer.Option(
        "--input", "-i", metavar="NAME=FILE",
        help="An input: .npy, .npz, or a picture (floats from 0 to 1); or FILE.npz with all by name. Repeatable.",
    ),
]  # fmt: skip
AllValues = Annotated[
    Path | None,
    typer.Option("--all-values", metavar="FILE.npz", help="Of an ONNX model: write all inner values, by name."),
]
Sizes = Annotated[
    list[str] | None,
    typer.Option("--size", metavar="NAME=SIZE,...", help="Sizes for the model's dynamic dims in this run."),
]
Target = Annotated[
    str,
    typer.Option(
        metavar="NAME[:FEATURES]",
        help="native: this machine's CPU and all its features; cpu:x86-64-v3, cpu:aarch64 and others; cuda:sm_90a; c; "
        "wasm.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
FastMath = Annotated[bool, typer.Option("--fast-math", help="Allow rewrites that hold for real numbers only.")]
Precision = Annotated[
    str,
    typer.Option(
        metavar="TYPE",
        help="The type of stored weights: float32, bfloat16, float16. Sums are float32. tf32: float32, multiplied as "
        "TF32 by NVIDIA GPUs. ieee: float32, by multiply-adds alone.",
    ),
]
Activations = Annotated[
    str, typer.Option(metavar="TYPE", help="What weights of few bits are multiplied with: float32, int8 (faster).")
]
Limit = Annotated[
    list[str] | None,
    typer.Option("--limit", metavar="NAME=NUMBER", help="Raise a budget: nodes, elements, terms, seconds. Repeatable."),
]


@dataclass(frozen=True)
class ModelOptions:
    """The options that describe the model, as in `ingot.compile`."""

    dim: Dims = None
    constant: Constants = None
    signature: Signature = None
    inputs: Inputs = None
    outputs: Outputs = None

    @property
    def words(self) -> Words:
        return Words(self.dim or [], self.constant or [], self.signature, self.inputs or [], self.outputs or [])


@dataclass(frozen=True)
class CompileOptions:
    """The options of compilation, named as the arguments of `compile_source`, `build` and `compare`, which take
    `**vars(settings)`."""

    threads: Threads = None
    target: Target = "native"
    precision: Precision = "float32"
    activations: Activations = "float32"
    fast_math: FastMath = False


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameters of a command that are groups by the options of these groups, for `typer`.

    run(model, *, about: ModelOptions, seed=0)   ->   run(model, dim=None, constant=None, ..., outputs=None, seed=0)
    """
    hints = get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if hasattr(hint, "__dataclass_fields__")}
    options: list[Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            options.append(parameter.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY))
            continue
        annotations = get_type_hints(groups[name], include_extras=True)
        options += [
            Parameter(f.name, Parameter.KEYWORD_ONLY, default=f.default, annotation=annotations[f.name])
            for f in fields(groups[name])
        ]

    @wraps(command)
    def call(**arguments: Any) -> None:
        groups_by_name = {
            name: group(**{f.name: arguments.pop(f.name) for f in fields(group)}) for name, group in groups.items()
        }
        command(**groups_by_name, **arguments)

    call.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    call.__annotations__ = {option.name: option.annotation for option in options}
    return call
