"""Rows, one per operation: tables by kind, joined."""

from ingot.frontends.shared.rows import merged
from ingot.frontends.stablehlo.rows import (
    collective,
    complex,
    contraction,
    control,
    elementwise,
    lapack,  # noqa: F401 - adds rows to the table of custom calls in control.py
    linalg,
    quantized,
    random,
    reduce,
    scatter,
    shape,
    sort,
    special,
    window,
)
from ingot.frontends.stablehlo.values import Rows

_MODULES = (
    collective, complex, contraction, control, elementwise, linalg, quantized, random, reduce, scatter, shape, sort,
    special, window,
)  # fmt: skip
ROWS = Rows(
    real=merged(module.row for module in _MODULES),
    complex=merged((complex.on_complex, contraction.on_complex, linalg.on_complex)),
    quantized=merged((quantized.on_quantized,)),
)
