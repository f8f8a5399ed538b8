"""What of a function's gradient JAX's lowering drops: `stop_gradient`, and gradients of functions' own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp
from jax._src import ad_util, core, custom_derivatives
from jax._src.interpreters import mlir
from jax._src.lax.control_flow.solves import linear_solve_p
from jax._src.lib.mlir.dialects import hlo
from jax._src.pjit import jit_p
from jax.extend.core import Primitive

from ingot.frontends.stablehlo.rows.control import COTANGENT, OWN_GRADIENT, STOPPED

_OWN = (custom_derivatives.custom_vjp_call_p, custom_derivatives.custom_jvp_call_p)
# whose slope JAX takes by another formula than what they are lowered to has, or by another one of two sides
_SLOPES = (
    linear_solve_p, lax.abs_p, lax.asinh_p, lax.erf_inv_p, lax.igamma_p, lax.igammac_p, lax.cummax_p, lax.cummin_p,
)  # fmt: skip
_BODIES = {**dict.fromkeys(_OWN, "call_jaxpr"), jit_p: "jaxpr"}  # the parameter that has what a call computes


@contextmanager
def gradients_told() -> Iterator[None]:
    """While it lasts, a program that JAX exports names what is a constant to its backward pass, and the gradients that
    functions bring along (`jax.custom_vjp`, `jax.custom_jvp`, `lax.custom_linear_solve`), as custom calls."""
    own = (*_OWN, *_SLOPES)
    before = {p: mlir._lowerings.get(p) for p in (ad_util.stop_gradient_p, *own)}
    rules = {ad_util.stop_gradient_p: _stopped} | {p: _with_own(p) for p in own}
    try:
        for primitive, rule in rules.items():
            mlir.register_lowering(primitive, rule)
        mlir._lowerings.update({_VALUES[p]: before[p] for p in _SLOPES})
        yield
    finally:
        for primitive, rule in (before | dict.fromkeys(_VALUES.values())).items():
            mlir._lowerings.pop(primitive, None)
            if rule is not None:
                mlir._lowerings[primitive] = rule


def _stopped(ctx: Any, x: Any) -> list[Any]:
    return list(hlo.CustomCallOp([x.type], [x], call_target_name=STOPPED).results)


def _with_own(primitive: Any) -> Any:
    """The function, its gradient by JAX itself, and both as operands of one custom call."""

    def lowered(ctx: Any, *operands: Any, **params: Any) -> Any:
        def whole(*xs: Any) -> list[Any]:
            def function(*parts: Any) -> tuple[list[Any], list[Any]]:
                left = iter(parts)
                ys = primitive.bind(*(_joined(x, left) for x in xs), **primitive.get_bind_params(params))
                ys = list(ys) if primitive.multiple_results else [ys]
                return _parts(ys), ys

            given = _parts(xs)
            told, pull, ys = jax.vjp(function, *given, has_aux=True)
            if not told or not given:
                return ys
            cotangents = [_cotangent.bind(y, number=k) for k, y in enumerate(told)]
            found = iter(_own.bind(*told, *cotangents, *given, *pull(cotangents), count=len(told)))
            return [_joined(y, found) for y in ys]

        def plain(*xs: Any) -> list[Any]:
            traced = jax.make_jaxpr(whole)(*xs)
            return _without_own(traced.jaxpr, traced.consts, xs)

        return mlir.lower_fun(plain)(ctx, *operands)

    return lowered


def _without_own(jaxpr: Any, consts: Sequence[Any], xs: Sequence[Any]) -> list[Any]:
    """What a program computes, its functions without the gradients that they bring along: nothing here is
    differentiated again, and a rule may call the function that it is the rule of (`jnp.linalg.slogdet`)."""
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *xs], strict=True))
    for eqn in jaxpr.eqns:
        given = [v.val if isinstance(v, core.Literal) else known[v] for v in eqn.invars]
        inner = eqn.params.get(_BODIES.get(eqn.primitive, ""))
        if inner is not None:
            ys = _without_own(inner.jaxpr, inner.consts, given)
        else:
            value = _VALUES.get(eqn.primitive, eqn.primitive)
            ys = value.bind(*given, **value.get_bind_params(eqn.params))
            ys = ys if value.multiple_results else [ys]
        known.update(zip(eqn.outvars, ys, strict=True))
    return [v.val if isinstance(v, core.Literal) else known[v] for v in jaxpr.outvars]


def _parts(values: Sequence[Any]) -> list[Any]:
    """The floats among the values, of complex numbers their parts."""
    floats = [x for x in values if jnp.issubdtype(x.dtype, jnp.inexact)]
    return [y for x in floats for y in ((x.real, x.imag) if jnp.iscomplexobj(x) else (x,))]


def _joined(x: Any, parts: Iterator[Any]) -> Any:
    """x, of the next parts if it is of floats."""
    if jnp.iscomplexobj(x):
        return lax.complex(next(parts), next(parts))
    return next(parts) if jnp.issubdtype(x.dtype, jnp.floating) else x


def _value(primitive: Any) -> Any:
    """What computes as the primitive does, without a gradient of its own."""
    value = Primitive(f"ingot_{primitive.name}")
    value.multiple_results = primitive.multiple_results
    value.def_effectful_abstract_eval(primitive.abstract_eval)
    return value


_VALUES = {p: _value(p) for p in _SLOPES}
_cotangent = Primitive("ingot_cotangent")
_cotangent.def_abstract_eval(lambda y, *, number: y)
_own = Primitive("ingot_own_gradient")
_own.multiple_results = True
_own.def_abstract_eval(lambda *operands, count: list(operands[:count]))


def _call(target: str, number: str) -> Any:
    def lowered(ctx: Any, *operands: Any, **params: int) -> Any:
        types = [x.type for x in operands[: len(ctx.avals_out)]]
        config = mlir.ir_attribute(str(params[number]))
        return hlo.CustomCallOp(types, operands, call_target_name=target, backend_config=config).results

    return lowered


mlir.register_lowering(_cotangent, _call(COTANGENT, "number"))
mlir.register_lowering(_own, _call(OWN_GRADIENT, "count"))

__all__ = ["gradients_told"]
