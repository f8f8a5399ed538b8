"""Attributions: how much each element of a model's inputs contributes to one score of its result."""
