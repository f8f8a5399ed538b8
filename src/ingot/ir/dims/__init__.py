"""Symbolic sizes: `algebra` has their canonical form, `bounds` their intervals, `values` substitution and estimates,
`text` their notation."""

# ruff: noqa: F401 - this file re-exports the names of the package

from ingot.ir.dims.algebra import (
    COMPUTED_PREFIX,
    Apply,
    Dim,
    DimLike,
    Interval,
    Symbol,
    as_dim,
    ceildiv,
    exact_quotient,
    floordiv,
    is_computed,
    is_input_element,
    is_number,
    is_static,
    mod,
    product,
    symbol,
    symbols_of,
)
from ingot.ir.dims.bounds import (
    MAX_INTEGER,
    MAX_SIZE,
    bounds,
    clamped_position,
    default_bounds,
    dim_max,
    dim_min,
    is_at_most,
    is_negative,
    may_be_empty,
    narrow_bounds,
    sign_bit,
    solve_equal,
    zero_bit,
)
from ingot.ir.dims.text import parse_dim, postfix
from ingot.ir.dims.values import estimate, likely_sizes, substitute
