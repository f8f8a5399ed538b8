"""Graphs of CORE ops as StableHLO programs."""

from ingot.frontends.stablehlo.out import folds as _folds  # noqa: F401 - registers its rows
from ingot.frontends.stablehlo.out import rows as _rows  # noqa: F401
from ingot.frontends.stablehlo.out.emitter import Emitted, emit

__all__ = ["Emitted", "emit"]
