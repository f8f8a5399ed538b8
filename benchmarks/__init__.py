"""Benchmarks: the model zoo and the side-by-side runs against the peers. Not part of the installed package."""
