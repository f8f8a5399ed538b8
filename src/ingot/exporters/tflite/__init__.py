"""Graphs as TFLite files: with float operators, or with int8 ones if the ranges of their values are known."""

from ingot.exporters.tflite.file import content

__all__ = ["content"]
