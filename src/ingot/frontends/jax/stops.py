"""`jax.lax.stop_gradient`, which JAX's lowering drops, and gradients of functions' own, which it drops, too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jax._src import ad_util, custom_derivatives
from jax._src.interpreters import mlir
from jax._src.lib.mlir.dialects import hlo

from ingot.frontends.stablehlo.rows.control import STOPPED
from ingot.support.errors import UnsupportedOp, UnsupportedOpError


@contextmanager
def stops_told() -> Iterator[None]:
    """While it lasts, a program that JAX exports names what is a constant to its backward pass; functions whose
    gradient is their own (`jax.custom_vjp`) are refused: of the program's graph only another could be had."""
    rules = {ad_util.stop_gradient_p: _stopped, custom_derivatives.custom_vjp_call_p: _refused}
    before = {p: mlir._lowerings.get(p) for p in rules}
    try:
        for primitive, rule in rules.items():
            mlir.register_lowering(primitive, rule)
        yield
    finally:
        for primitive, rule in before.items():
            mlir._lowerings.pop(primitive, None)
            if rule is not None:
                mlir._lowerings[primitive] = rule


def _stopped(ctx: Any, x: Any) -> list[Any]:
    return list(hlo.CustomCallOp([x.type], [x], call_target_name=STOPPED).results)


def _refused(ctx: Any, *operands: Any, **params: Any) -> list[Any]:
    what = f"jax.custom_vjp of {params.get('name', 'a function')}, whose gradient only JAX knows"
    raise UnsupportedOpError([UnsupportedOp("custom_vjp_call", "the function to train", what)])


__all__ = ["stops_told"]
