"""Portable C: kernels and whole programs as C99 text."""
