"""Other implementations of a model, and how far their results are apart."""
