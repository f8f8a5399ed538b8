"""The parts of a function's gradient that JAX's lowering drops: `stop_gradient`, and custom gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from jax._src.random import random_gamma_p
from jax.extend.core import ClosedJaxpr, Literal, Primitive

from ingot.frontends.stablehlo.rows.control import COTANGENT, OWN_GRADIENT, STOP_GRADIENT, UNKNOWN_GRADIENT
from ingot.support.errors import ImportModelError

_CUSTOM_GRADIENTS = (custom_derivatives.custom_vjp_call_p, custom_derivatives.custom_jvp_call_p)
# primitives whose gradient in JAX differs from that of their lowering, or whose lowering has none, such as loops until
# convergence or rejection sampling
_WITHOUT_GRADIENTS = (
    linear_solve_p, lax.abs_p, lax.asinh_p, lax.erf_inv_p, lax.igamma_p, lax.igammac_p, lax.cummax_p, lax.cummin_p,
    lax.linalg.svd_p, lax.regularized_incomplete_beta_p, random_gamma_p,
)  # fmt: skip
_BODIES = {
    **dict.fromkeys(_CUSTOM_GRADIENTS, "call_jaxpr"),
    jit_p: "jaxpr",
}  # the parameter that has the call's computation


@contextmanager
def gradient_marks() -> Iterator[None]:
    """Within the block, programs that JAX exports mark constants of the backward pass and custom gradients of functions
    (`jax.custom_vjp`, `jax.custom_jvp`, `lax.custom_linear_solve`) by custom calls."""
    primitives = (*_CUSTOM_GRADIENTS, *_WITHOUT_GRADIENTS)
    lowerings = {p: mlir._lowerings.get(p) for p in (ad_util.stop_gradient_p, *primitives)}
    rules = {ad_util.stop_gradient_p: _marked(STOP_GRADIENT)} | {p: _with_own(p) for p in primitives}
    try:
        for primitive, rule in rules.items():
            mlir.register_lowering(primitive, rule)
        mlir._lowerings.update({_VALUES[p]: lowerings[p] for p in _WITHOUT_GRADIENTS})
        yield
    finally:
        for primitive, rule in (lowerings | dict.fromkeys(_VALUES.values())).items():
            mlir._lowerings.pop(primitive, None)
            if rule is not None:
                mlir._lowerings[primitive] = rule


def _marked(name: str) -> Any:
    """A lowering to a custom call of this name, which returns its operand."""
    return lambda ctx, x: list(hlo.CustomCallOp([x.type], [x], call_target_name=name).results)


def _with_own(primitive: Any) -> Any:
    """A lowering to the function and its gradient by JAX, both operands of one custom call."""

    def lowered(ctx: Any, *operands: Any, **params: Any) -> Any:
        silent = _without_slope(primitive, params)

        def with_nested_arguments(*xs: Any) -> list[Any]:
            def function(*parts: Any) -> tuple[list[Any], list[Any]]:
                remaining = iter(parts)
                operands_ = (x if i in silent else _from_parts(x, remaining) for i, x in enumerate(xs))
                ys = _bind(primitive, operands_, params)
                ys = list(ys) if primitive.multiple_results else [ys]
                return _parts(ys), ys

            operands = _parts([x for i, x in enumerate(xs) if i not in silent])
            others = [_unknown_gradient.bind(x) for x in _parts([xs[i] for i in silent])]
            ys_with_cotangents, pull, ys = jax.vjp(function, *operands, has_aux=True)
            if not ys_with_cotangents or not (operands or others):
                return ys
            cotangents = [_cotangent.bind(y, number=k) for k, y in enumerate(ys_with_cotangents)]
            slopes = [*pull(cotangents), *map(jnp.zeros_like, others)]
            results = iter(
                _own_gradient.bind(
                    *ys_with_cotangents, *cotangents, *operands, *others, *slopes, count=len(ys_with_cotangents)
                )
            )
            return [_from_parts(y, results) for y in ys]

        def plain(*xs: Any) -> list[Any]:
            traced = jax.make_jaxpr(with_nested_arguments)(*xs)
            if any(isinstance(value, core.Tracer) for value in traced.consts):
                got = "a rule that closes over a value of the traced function"
                fix = "give that value as an argument, with its gradient or zeros for it"
                raise ImportModelError(
                    "a gradient of a function's own", expected="one of its arguments", got=got, fix=fix
                )
            return _without_own(traced.jaxpr, traced.consts, xs)

        return mlir.lower_fun(plain)(ctx, *operands)

    return lowered


def _without_slope(primitive: Any, params: Mapping[str, Any]) -> Sequence[int]:
    """The operands without a derivative in JAX: values that a function with a custom gradient closes over, and the
    shape of a beta distribution."""
    if primitive is custom_derivatives.custom_vjp_call_p:
        return range(params["num_consts"])
    return range(2) if primitive is lax.regularized_incomplete_beta_p else ()


def _bind(primitive: Any, operands: Iterable[Any], params: Mapping[str, Any]) -> Any:
    """Bind the primitive again, with the parameters of an equation."""
    bind_params = primitive.get_bind_params(params)
    functions, params = (
        bind_params if isinstance(bind_params, tuple) else ((), bind_params)
    )  # JAX before 0.10 passes functions separately
    return primitive.bind(*functions, *operands, **params)


def _without_own(jaxpr: Any, consts: Sequence[Any], xs: Sequence[Any]) -> list[Any]:
    """The computation of a program whose functions lose their custom gradients: nothing here is
    differentiated again, and a rule may call the function that it is the rule of (`jnp.linalg.slogdet`)."""
    environment = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *xs], strict=True))
    for eqn in jaxpr.eqns:
        values = [v.val if isinstance(v, Literal) else environment[v] for v in eqn.invars]
        inner = eqn.params.get(_BODIES.get(eqn.primitive, ""))
        if inner is not None:
            ys = _without_own(inner.jaxpr, inner.consts, values)
        else:
            value = _VALUES.get(eqn.primitive, eqn.primitive)
            params = {name: _without_gradients(p) for name, p in eqn.params.items()}
            ys = _bind(value, values, params)
            ys = ys if value.multiple_results else [ys]
        environment.update(zip(eqn.outvars, ys, strict=True))
    return [v.val if isinstance(v, Literal) else environment[v] for v in jaxpr.outvars]


def _without_gradients(parameter: Any) -> Any:
    """A parameter of a loop or a branch, with custom gradients removed from its bodies."""
    if type(parameter) is tuple:  # and not one with names, as of dimensions
        return tuple(map(_without_gradients, parameter))
    if not isinstance(parameter, ClosedJaxpr) or not _has_gradient_rule(parameter.jaxpr):
        return parameter

    def body(*xs: Any) -> list[Any]:
        return _without_own(parameter.jaxpr, parameter.consts, xs)

    return jax.make_jaxpr(body)(*(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in parameter.in_avals))


def _has_gradient_rule(jaxpr: Any) -> bool:
    """Whether something in it has a custom gradient."""
    has_rule = any(e.primitive in _CUSTOM_GRADIENTS or e.primitive in _VALUES for e in jaxpr.eqns)
    return has_rule or any(_has_gradient_rule(inner) for inner in core.subjaxprs(jaxpr))


def _parts(values: Sequence[Any]) -> list[Any]:
    """The floats among the values; complex numbers as their parts."""
    floats = [x for x in values if jnp.issubdtype(x.dtype, jnp.inexact)]
    return [y for x in floats for y in ((x.real, x.imag) if jnp.iscomplexobj(x) else (x,))]


def _from_parts(x: Any, parts: Iterator[Any]) -> Any:
    """x, rebuilt from the next parts if it is a float or complex."""
    if jnp.iscomplexobj(x):
        return lax.complex(next(parts), next(parts))
    return next(parts) if jnp.issubdtype(x.dtype, jnp.floating) else x


def _value(primitive: Any) -> Any:
    """A function that computes the primitive without its gradient rule."""
    value = Primitive(f"ingot_{primitive.name}")
    value.multiple_results = primitive.multiple_results
    value.def_effectful_abstract_eval(primitive.abstract_eval)
    return value


_VALUES = {p: _value(p) for p in _WITHOUT_GRADIENTS}
_cotangent = Primitive("ingot_cotangent")
_cotangent.def_abstract_eval(lambda y, *, number: y)
_unknown_gradient = Primitive("ingot_unknown_gradient")
_unknown_gradient.def_abstract_eval(lambda x: x)
_own_gradient = Primitive("ingot_own_gradient")
_own_gradient.multiple_results = True
_own_gradient.def_abstract_eval(lambda *operands, count: list(operands[:count]))


def _call(target: str, number: str) -> Any:
    def lowered(ctx: Any, *operands: Any, **params: int) -> Any:
        types = [x.type for x in operands[: len(ctx.avals_out)]]
        config = mlir.ir_attribute(str(params[number]))
        return hlo.CustomCallOp(types, operands, call_target_name=target, backend_config=config).results

    return lowered


mlir.register_lowering(_cotangent, _call(COTANGENT, "number"))
mlir.register_lowering(_unknown_gradient, _marked(UNKNOWN_GRADIENT))
mlir.register_lowering(_own_gradient, _call(OWN_GRADIENT, "count"))

__all__ = ["gradient_marks"]
