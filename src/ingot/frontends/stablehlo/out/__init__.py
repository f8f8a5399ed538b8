"""Graphs of CORE ops as StableHLO programs."""

from ingot.frontends.stablehlo.out import rows as _rows  # noqa: F401 - registers them
from ingot.frontends.stablehlo.out.emitter import Emitted, emit

__all__ = ["Emitted", "emit"]
