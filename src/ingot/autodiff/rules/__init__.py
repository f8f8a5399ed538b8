"""Reverse rules of the CORE ops. A rule may build ops of any level."""

from ingot.autodiff.rules import elementwise, folds, indexing, loops, products, shape  # noqa: F401  each registers its own
from ingot.autodiff.table import RULES

__all__ = ["RULES"]
