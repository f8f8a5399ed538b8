"""Depthwise convolutions and the gradients of their kernels."""
