"""Rows, one per op: tables by kind, joined."""

from ingot.frontends.tensorflow.rows import (
    contraction,
    control,
    create,
    elementwise,
    image,
    index,
    lists,
    norm,
    pool,
    reduce,
    shape,
    sort,
    variables,
)
from ingot.frontends.tensorflow.values import merged

ROWS = merged(
    m.row
    for m in (
        contraction, control, create, elementwise, image, index, lists, norm, pool, reduce, shape, sort, variables,
    )
)  # fmt: skip
