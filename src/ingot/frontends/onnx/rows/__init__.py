"""The import table: importing a family registers its rows."""

from ingot.frontends.onnx.rows import (
    attention,
    contrib,
    control,
    elementwise,
    indexing,
    nn,
    norm,
    quant,
    quant_contrib,
    recurrent,
    reduction,
    resize,
    sampling,
    shape,
    signal,
)

__all__ = [
    "attention",
    "contrib",
    "control",
    "elementwise",
    "indexing",
    "nn",
    "norm",
    "quant",
    "quant_contrib",
    "recurrent",
    "reduction",
    "resize",
    "sampling",
    "shape",
    "signal",
]
