"""JAX functions as graphs, by way of jax.export and StableHLO."""

from ingot.frontends.jax.function import ImportedFunction, import_jax, is_jax
from ingot.frontends.jax.jit import jit

__all__ = ["ImportedFunction", "import_jax", "is_jax", "jit"]
