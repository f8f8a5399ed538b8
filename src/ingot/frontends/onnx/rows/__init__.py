"""The import table: importing a family registers its rows."""

# ruff: noqa: F401 - imported for their rows

from ingot.frontends.onnx.rows import (
    attention,
    elementwise,
    indexing,
    nn,
    norm,
    optimizers,
    quant,
    random,
    recurrent,
    reduction,
    shape,
    signal,
    slice,
)
from ingot.frontends.onnx.rows.contrib import contrib, experts, quant_contrib
from ingot.frontends.onnx.rows.flow import control, loops, sequences
from ingot.frontends.onnx.rows.image import resize, sampling
from ingot.frontends.onnx.rows.ml import ml, trees
