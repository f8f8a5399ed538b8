"""Answers about properties of a model: attacks, boxes and neurons that are split, VNN-LIB files."""
