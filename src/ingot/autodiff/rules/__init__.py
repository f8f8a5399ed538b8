"""Reverse rules of the CORE ops, and of MODEL ops with a cheaper one. A rule may build ops of any level."""

from ingot.autodiff.rules import (  # noqa: F401  each registers its rules
    collectives,
    elementwise,
    factorizations,
    folds,
    indexing,
    loops,
    normalizers,
    own,
    products,
    sampling,
    shape,
    windows,
)
from ingot.autodiff.table import RULES

__all__ = ["RULES"]
