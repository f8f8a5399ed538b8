"""Energy that is read from a counter, or not given."""
