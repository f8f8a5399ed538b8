"""Quantized models made of float ones: formats chosen per op by measurement. See docs/reference/quantize.md."""
