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
    recurrent,
    reduce,
    shape,
    window,
)
from ingot.frontends.tflite.rows.levels import arithmetic, functions, products

ROWS = Rows(
    real=merged(
        [
            m.row
            for m in (
                contraction,
                control,
                detection,
                elementwise,
                fourier,
                index,
                quantize,
                recurrent,
                reduce,
                shape,
                window,
            )
        ]
    ),
    quantized=merged([m.on_levels for m in (arithmetic, functions, products, quantize, recurrent)]),
    custom=merged([detection.custom, perception.custom]),
)
