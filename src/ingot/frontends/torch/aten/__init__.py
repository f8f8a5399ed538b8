"""The handlers of aten ops, one module per family; `ATEN` is all of them by name."""

from ingot.frontends.shared.rows import merged
from ingot.frontends.torch.aten import (
    complex,
    complex_functions,
    create,
    division,
    elementwise,
    fold,
    index,
    logic,
    pad,
    random,
    reduce,
    selection,
    shape,
    special,
    strided,
)
from ingot.frontends.torch.aten.algebra import complex_factorizations, factorizations, fourier, linalg
from ingot.frontends.torch.aten.layers import (
    activation,
    attention,
    bags,
    nn,
    norms,
    own_gradient,
    quantized,
    recurrent,
    resize,
)
from ingot.frontends.torch.table import Handler

# handlers on real tensors; `complex.complex_handler` finds those on complex ones
ATEN: dict[str, Handler] = merged(
    m.aten
    for m in (
        elementwise,
        division,
        special,
        logic,
        create,
        shape,
        pad,
        strided,
        fold,
        index,
        bags,
        own_gradient,
        selection,
        reduce,
        linalg,
        factorizations,
        activation,
        nn,
        norms,
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
KNOWN = (
    frozenset(ATEN) | frozenset(complex_functions.on_complex.rows) | frozenset(complex_factorizations.on_complex.rows)
)
