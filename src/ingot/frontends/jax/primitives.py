"""The user's primitives: custom calls in the StableHLO that JAX emits."""

from __future__ import annotations

from typing import Any

import jax
from jax.interpreters import mlir


def lower_to_call(primitive: Any, name: str) -> None:
    """Have JAX lower a primitive to a custom_call of `name`, with the primitive's parameters as its attributes."""

    def rule(ctx: Any, *operands: Any, **parameters: Any) -> Any:
        return jax.ffi.ffi_lowering(name)(ctx, *operands, **parameters)

    mlir.register_lowering(primitive, rule)
