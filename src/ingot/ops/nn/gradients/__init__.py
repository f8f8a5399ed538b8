"""Ops of backward passes: gradients with kernels or algorithms of their own, and what has none."""
