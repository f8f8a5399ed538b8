"""Rows, one per operator: tables by kind, joined."""

from ingot.frontends.tflite.call import Rows, Table, merged
from ingot.frontends.tflite.rows import contraction, control, elementwise, index, quantize, reduce, shape, window

_MODULES = (contraction, control, elementwise, index, quantize, reduce, shape, window)
ROWS = Rows(
    real=merged([module.row for module in _MODULES]),
    quantized=merged([quantize.on_levels]),
    custom=Table(),
)
