"""Options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ingot.debug.source import Words

Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="An ONNX file, a PyTorch .pt2 file, or a compiled .ingot file.")
]
Uncompiled = Annotated[
    Path, typer.Argument(metavar="MODEL", help="An ONNX file or a PyTorch .pt2 file (torch.export.save).")
]
Threads = Annotated[int | None, typer.Option(min=1, max=1024, help="Threads; by default one per physical core.")]
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
        help="An input that always is 16000, [1,2] or FILE.npy; or FILE.safetensors for several. Repeatable.",
    ),
]  # fmt: skip
Signature = Annotated[str | None, typer.Option(metavar="NAME", help="Which signature of a SavedModel or TFLite file.")]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--inputs", metavar="NAME[=SHAPE]", help="A tensor to use as input: x, x=?,224,3, x=f32:?,8. Repeatable."
    ),
]
Outputs = Annotated[
    list[str] | None, typer.Option("--outputs", metavar="NAME", help="An output to compile, of several. Repeatable.")
]
Sizes = Annotated[
    list[str] | None,
    typer.Option("--size", metavar="NAME=SIZE,...", help="Sizes of the run that the model leaves open."),
]
Target = Annotated[
    str,
    typer.Option(
        metavar="NAME[:FEATURES]",
        help="native: this machine's CPU with all that it has; or cpu:x86-64-v3, cpu:znver4, cpu:aarch64 and others.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
FastMath = Annotated[bool, typer.Option("--fast-math", help="Allow rewrites that hold for real numbers only.")]
Precision = Annotated[
    str, typer.Option(metavar="TYPE", help="What weights are stored in: float32, bfloat16, float16. Sums are float32.")
]
Limit = Annotated[
    list[str] | None,
    typer.Option("--limit", metavar="NAME=NUMBER", help="Raise a budget: nodes, elements, terms, seconds. Repeatable."),
]


def words(
    dim: list[str] | None, constant: list[str] | None, signature: str | None, inputs: list[str] | None,
    outputs: list[str] | None,
) -> Words:  # fmt: skip
    """What is said of the model, in the words of `ingot.compile`."""
    return Words(dim or [], constant or [], signature, inputs or [], outputs or [])
