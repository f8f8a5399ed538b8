"""JAX functions as graphs, by way of jax.export and StableHLO."""

from ingot.frontends.jax.function import ImportedFunction, import_jax, is_function, is_jax
from ingot.frontends.jax.gradients import gradient_marks
from ingot.frontends.jax.resized import resized

__all__ = ["ImportedFunction", "gradient_marks", "import_jax", "is_function", "is_jax", "resized"]
