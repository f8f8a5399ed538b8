"""Bounds of a model's results over boxes of its inputs: as programs, as answers about properties, by attacks."""
