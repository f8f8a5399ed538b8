"""The handlers of aten ops, one module per family; `ATEN` is all of them by name."""

from ingot.frontends.torch.aten import (
    activation,
    attention,
    create,
    elementwise,
    fold,
    index,
    linalg,
    logic,
    nn,
    recurrent,
    reduce,
    resize,
    shape,
)
from ingot.frontends.torch.table import Handler, merged

ATEN: dict[str, Handler] = merged(
    m.aten
    for m in (
        elementwise,
        logic,
        create,
        shape,
        fold,
        index,
        reduce,
        linalg,
        activation,
        nn,
        attention,
        resize,
        recurrent,
    )
)
