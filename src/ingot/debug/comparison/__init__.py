"""Other implementations of a model, and the differences of their results."""
