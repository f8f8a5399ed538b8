"""Rows, one per operator: tables by kind, joined."""

from ingot.frontends.shared.rows import merged
from ingot.frontends.tflite.call import Rows
from ingot.frontends.tflite.rows import (
    contraction,
    control,
    detection,
    elementwise,
    fourier,
    index,
    perception,
    quantize,
    random,
    recurrent,
    reduce,
    shape,
    stablehlo,
    window,
)
from ingot.frontends.tflite.rows.levels import arithmetic, functions, products

_MODULES = (
    contraction, control, detection, elementwise, fourier, index, quantize, random, recurrent, reduce, shape, stablehlo,
    window,
)  # fmt: skip
ROWS = Rows(
    real=merged(m.row for m in _MODULES),
    quantized=merged([m.on_levels for m in (arithmetic, functions, products, quantize, recurrent)]),
    custom=merged([detection.custom, perception.custom]),
    missing_reasons={
        **dict.fromkeys(("HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT", "HASHTABLE_SIZE"), "tables of strings"),
        "SKIP_GRAM": "of strings",
        "LSH_PROJECTION": "places in hash tables, by a hash of bytes",
        "DELEGATE": "a part of the model that was compiled for one device",
        **dict.fromkeys(("CALL", "CONCAT_EMBEDDINGS"), "the schema names it, no runtime has it"),
        "PLACEHOLDER_FOR_GREATER_OP_CODES": "no operator",
    },
)
