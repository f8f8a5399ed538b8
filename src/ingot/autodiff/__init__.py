"""Reverse-mode differentiation of graphs: gradients as nodes of the same graph."""

from ingot.autodiff.graphs import differentiable, pullback, pullbacks, value_and_gradients
from ingot.autodiff.reverse import gradients, pull_back_cotangents
from ingot.autodiff.table import differentiable_operands

__all__ = [
    "differentiable",
    "differentiable_operands",
    "gradients",
    "pull_back_cotangents",
    "pullback",
    "pullbacks",
    "value_and_gradients",
]  # fmt: skip
