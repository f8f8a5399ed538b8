"""Weights that are stored in fewer bytes than they have elements: levels in blocks, and sparse ones."""
