"""Builders of the zoo's networks, by family. Importing a module here imports torch; `benchmarks.zoo` does not."""
