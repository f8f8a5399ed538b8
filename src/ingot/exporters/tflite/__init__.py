"""Graphs as TFLite files: float operators, or int8 ones where ranges of their values are given."""

from ingot.exporters.tflite.file import content

__all__ = ["content"]
