"""The handlers of aten ops, one module per family; `ATEN` is all of them by name."""

from ingot.frontends.shared.rows import merged
from ingot.frontends.torch.aten import (
    activation,
    attention,
    complex,
    complex_functions,
    create,
    elementwise,
    factorizations,
    fold,
    fourier,
    index,
    linalg,
    logic,
    nn,
    quantized,
    random,
    recurrent,
    reduce,
    resize,
    selection,
    shape,
    special,
    strided,
)
from ingot.frontends.torch.table import Handler

# on real tensors; `complex.complex_handler` knows those on complex ones
ATEN: dict[str, Handler] = merged(
    m.aten
    for m in (
        elementwise,
        special,
        logic,
        create,
        shape,
        strided,
        fold,
        index,
        selection,
        reduce,
        linalg,
        factorizations,
        activation,
        nn,
        attention,
        resize,
        recurrent,
        quantized,
        random,
        complex,
        fourier,
    )
)

# every op that has a handler
KNOWN = frozenset(ATEN) | frozenset(complex_functions.on_complex.rows)
