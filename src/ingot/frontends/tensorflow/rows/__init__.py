"""Rows, one per op: tables by kind, joined."""

from ingot.frontends.shared.rows import merged
from ingot.frontends.tensorflow.rows import (
    control,
    create,
    detection,
    elementwise,
    image,
    index,
    lists,
    norm,
    pool,
    program,
    recurrent,
    reduce,
    shape,
    sort,
    variables,
)
from ingot.frontends.tensorflow.rows.algebra import complex, contraction, diagonals, linalg, ragged, sparse
from ingot.frontends.tensorflow.rows.training import gradients, optimizers, random

ROWS = merged(
    m.row
    for m in (
        complex, contraction, control, create, detection, diagonals, elementwise, gradients, image, index, linalg,
        lists, norm, optimizers, pool, program, ragged, random, recurrent, reduce, shape, sort, sparse, variables,
    )
)  # fmt: skip
