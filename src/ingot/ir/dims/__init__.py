"""Symbolic sizes: `algebra` has their canonical form, `bounds` their intervals, `values` substitution and estimates,
`text` their notation."""

# ruff: noqa: F401 - this file re-exports the names of the package

from ingot.ir.dims.algebra import (
    FOUND,
    Apply,
    Dim,
    DimLike,
    Interval,
    Symbol,
    as_dim,
    ceildiv,
    divides,
    floordiv,
    is_found,
    is_static,
    is_told,
    mod,
    product,
    symbol,
    symbols_of,
)
from ingot.ir.dims.bounds import (
    FARTHEST,
    MOST,
    at_most,
    bounds,
    dim_max,
    dim_min,
    may_be_empty,
    narrowed,
    negative,
    on_axis,
    sign_bit,
    solve_equal,
    span_of,
    zero_bit,
)
from ingot.ir.dims.text import parse_dim, postfix
from ingot.ir.dims.values import estimate, likely_sizes, substitute
