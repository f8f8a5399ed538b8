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
    reduce,
    shape,
    sort,
    variables,
)
from ingot.frontends.tensorflow.rows.algebra import complex, contraction, linalg

ROWS = merged(
    m.row
    for m in (
        complex, contraction, control, create, detection, elementwise, image, index, linalg, lists, norm, pool, program,
        reduce, shape, sort, variables,
    )
)  # fmt: skip
