"""Rows, one per op: tables by kind, joined."""

from ingot.frontends.shared.rows import merged
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

ROWS = merged(
    m.row
    for m in (
        contraction, control, create, elementwise, image, index, lists, norm, pool, reduce, shape, sort, variables,
    )
)  # fmt: skip
