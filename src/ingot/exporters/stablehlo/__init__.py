"""Graphs of CORE ops as StableHLO programs."""

from ingot.exporters.stablehlo import collectives as _collectives  # noqa: F401 - registers its rows
from ingot.exporters.stablehlo import folds as _folds  # noqa: F401
from ingot.exporters.stablehlo import rows as _rows  # noqa: F401
from ingot.exporters.stablehlo.emitter import Emitted, emit
from ingot.exporters.stablehlo.file import write

__all__ = ["Emitted", "emit", "write"]
