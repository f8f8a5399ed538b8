"""What of a function's gradient JAX's lowering drops: `stop_gradient`, and gradients of functions' own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax._src import ad_util, core, custom_derivatives
from jax._src.interpreters import mlir
from jax._src.lax.control_flow.solves import linear_solve_p
from jax._src.lib.mlir.dialects import hlo
from jax._src.pjit import jit_p
from jax.extend.core import Primitive, jaxpr_as_fun

from ingot.frontends.stablehlo.rows.control import COTANGENT, OWN_GRADIENT, STOPPED

_OWN = (custom_derivatives.custom_vjp_call_p, custom_derivatives.custom_jvp_call_p)
_BODIES = {**dict.fromkeys(_OWN, "call_jaxpr"), jit_p: "jaxpr"}  # the parameter that has what a call computes


@contextmanager
def gradients_told() -> Iterator[None]:
    """While it lasts, a program that JAX exports names what is a constant to its backward pass, and the gradients that
    functions bring along (`jax.custom_vjp`, `jax.custom_jvp`, `lax.custom_linear_solve`), as custom calls."""
    rules = {ad_util.stop_gradient_p: _stopped, linear_solve_p: _solved} | {p: _with_own(p) for p in _OWN}
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


def _with_own(primitive: Any) -> Any:
    """The function, its gradient by JAX itself, and both as operands of one custom call."""

    def lowered(ctx: Any, *operands: Any, **params: Any) -> Any:
        def whole(*xs: Any) -> list[Any]:
            floats = [i for i, x in enumerate(xs) if _is_float(x)]

            def function(*some: Any) -> Any:
                every = list(xs)
                for i, x in zip(floats, some, strict=True):
                    every[i] = x
                return primitive.bind(*every, **primitive.get_bind_params(params))

            given = [xs[i] for i in floats]
            ys, pull = jax.vjp(function, *given)
            told = [i for i, y in enumerate(ys) if _is_float(y)]
            if not told or not floats:
                return ys
            cotangents = {i: _cotangent.bind(ys[i], number=k) for k, i in enumerate(told)}
            gradients = pull([cotangents[i] if i in cotangents else _none(y) for i, y in enumerate(ys)])
            found = _joined([ys[i] for i in told], [*cotangents.values()], given, gradients)
            own = dict(zip(told, found, strict=True))
            return [own.get(i, y) for i, y in enumerate(ys)]

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
            ys = eqn.primitive.bind(*given, **eqn.primitive.get_bind_params(eqn.params))
        known.update(zip(eqn.outvars, ys if eqn.primitive.multiple_results or inner is not None else [ys], strict=True))
    return [v.val if isinstance(v, core.Literal) else known[v] for v in jaxpr.outvars]


def _solved(ctx: Any, *operands: Any, const_lengths: Any, jaxprs: Any) -> Any:
    """x with a(x) = b, `a` linear: of b the gradient is solved for by a^T, of what `a` reads it is that of -a(x) there.

    What solves reads factors that JAX keeps from having gradients.
    """

    def whole(*args: Any) -> list[Any]:
        starts = np.cumsum([0, *const_lengths])
        matrix, _, factors, transposed = (args[i:j] for i, j in itertools.pairwise(starts))
        b = args[starts[-1] :]
        xs = jaxpr_as_fun(jaxprs.solve)(*factors, *b)
        if jaxprs.transpose_solve is None or len(xs) != len(b) or not all(map(_is_float, (*matrix, *b))):
            return xs
        cotangents = [_cotangent.bind(x, number=k) for k, x in enumerate(xs)]
        of_b = jaxpr_as_fun(jaxprs.transpose_solve)(*transposed, *cotangents)
        _, pull = jax.vjp(lambda *given: jaxpr_as_fun(jaxprs.matvec)(*given, *xs), *matrix)
        return _joined(xs, cotangents, [*matrix, *b], [*pull([-g for g in of_b]), *of_b])

    return mlir.lower_fun(whole)(ctx, *operands)


def _joined(ys: Sequence[Any], cotangents: Sequence[Any], xs: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
    """The ys, with the gradients of the xs from their cotangents."""
    return _own.bind(*ys, *cotangents, *xs, *gradients, count=len(ys))


def _none(y: Any) -> Any:
    """The cotangent of what is no float."""
    return np.zeros(np.shape(y), jax.dtypes.float0)


def _is_float(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


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
