"""`ingot.export`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ingot.support.errors import InputError
from ingot.support.files import atomic_write


def export(
    model: Any,
    path: str | os.PathLike[str],
    example_inputs: Any = None,
    *,
    dynamic: Any = None,
    weights: Any = None,
    inline: bool = False,
    samples: Any = None,
    float_edges: bool = False,
    activations: str = "int8",
) -> None:
    """Write a model as a StableHLO program (text), for XLA, TPUs, IREE and others; or, where the path ends in
    `.tflite`, as a TFLite file, for LiteRT, microcontrollers and NPUs.

    Args:
        model, example_inputs, dynamic, weights: as for `compile`. TFLite takes fixed sizes only: those that the model
            leaves open are the samples', else the example inputs'.
        path: the file to write. The weights of StableHLO are its last arguments, and are stored in a safetensors file
            next to it.
        inline: store the weights in StableHLO's text instead.
        samples: for TFLite: inputs as `quantize` takes them. The file then has int8 operators, with scales by the
            ranges of their values over the samples. None: float operators.
        float_edges: keep the inputs and outputs of a file made from samples in floats.
        activations: the type of a file's values that is made from samples, "int8" or "int16"; weights are int8. A model
            that is quantized already (QDQ, QLinearConv, ...) is written with its own scales, without samples.

    Raises what `compile` raises for a model that cannot be read, and UnsupportedOpError naming every op that StableHLO
    or TFLite cannot express.
    """
    from ingot.driver.open import Request, open_model  # not above: `ingot.load` does without the compiler

    opened, path = open_model(model, Request(example_inputs, dynamic, weights)), Path(path)
    if path.suffix != ".tflite":
        if samples is not None:
            raise InputError("samples", expected="a path that ends in .tflite", got=path.name)
        from ingot.exporters.stablehlo import write

        write(opened.graph, path, inline)
        return
    from ingot.exporters.tflite import content
    from ingot.transform.quantize.samples import read_samples
    from ingot.transform.quantize.tflite import sizes_of, write_levels

    calls: Any = None if samples is None else read_samples(opened.graph, samples, None, 1, opened.flatten).calls
    arrays = example_inputs if isinstance(example_inputs, tuple | list) else []
    sizes = sizes_of(opened.graph, calls[0] if calls else [x for x in arrays if hasattr(x, "shape")])
    if sizes and (dynamic is None or isinstance(dynamic, dict)):
        opened = open_model(model, Request(example_inputs, {**sizes, **(dynamic or {})}, weights))
    if calls is None:
        atomic_write(path, [content(opened.graph)])
    else:
        write_levels(opened.graph, calls, path, float_edges, activations)
