"""Reverse-mode differentiation of graphs: gradients as nodes of the same graph."""

from ingot.autodiff.reverse import gradients, value_and_gradients

__all__ = ["gradients", "value_and_gradients"]
