"""Contractions on GPUs: products of tiles, of a single row, and of channels with images of their own."""
