"""Calls of functions, and the pass that puts arithmetic in their places."""

from __future__ import annotations

import re

import pytest

from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Kernel, Let, Store, integer
from ingot.ir.kernel.math.expand import EXPANSIONS, expand, expanded
from ingot.ir.kernel.show import show_kernel
from ingot.ir.kernel.verify import verify_kernel
from ingot.ir.types import DTYPES, f32
from ingot.support.errors import VerifyError

X, OUT = Buffer("x", f32), Buffer("out", f32, writable=True)


def kernel(*body: k.Stmt) -> Kernel:
    return Kernel("k", (X, OUT), (), k.var("chunk"), integer(1), body)


def called(kernel: Kernel) -> set[str]:
    """The functions that a kernel's text names."""
    return set(re.findall(r"\w+(?=\()", show_kernel(kernel))) & set(k.FUNCTIONS)


@pytest.mark.parametrize("fn", k.FUNCTIONS)
@pytest.mark.parametrize("name", ["f32", "f64"])
def test_every_function_has_an_expansion(fn: str, name: str) -> None:
    if fn == "gelu_narrow" and name == "f64":
        pytest.skip("of f32 only")
    dtype = DTYPES[name]
    x, result = Buffer("x", dtype), Buffer("out", dtype, writable=True)
    value = k.call(fn, *(k.load(x, integer(i), 4) for i in range(k.FUNCTIONS[fn])))
    data = Kernel("k", (x, result), (), k.var("chunk"), integer(1), (Store(result, integer(0), value),))
    verify_kernel(data)
    expansion = expand(data)
    verify_kernel(expansion)
    assert called(data) == {fn} and not called(expansion)
    assert set(k.FUNCTIONS) == set(EXPANSIONS)


def test_calls_within_calls_and_under_other_expressions() -> None:
    inner = k.call("exp", k.load(X, integer(0)))
    loop = k.For(k.var("i"), integer(0), integer(4), 1, (
        k.If(k.binary("lt", inner, k.lit(1.0, f32)), (Store(OUT, k.var("i"), k.cast(k.call("tanh", inner), f32)),)),
    ))  # fmt: skip
    expansion = expand(kernel(loop))
    verify_kernel(expansion)
    assert called(kernel(loop)) == {"exp", "tanh"} and not called(expansion)


@pytest.mark.parametrize("inner", ["logistic", "tanh", "exp"])
@pytest.mark.parametrize("outer", ["logistic", "tanh", "exp", "erf", "sinh"])
def test_a_function_of_a_function_is_expanded_as_of_any_operand(outer: str, inner: str) -> None:
    """An expansion may call functions: the expressions that their expansions replace must not lend others their ids."""
    operand = k.call(inner, k.load(X, integer(0)))
    (value,) = expanded([k.call(outer, operand)])
    (expanded_operand,) = expanded([operand])
    (stepwise,) = expanded([k.call(outer, expanded_operand)])
    texts = [show_kernel(kernel(Store(OUT, integer(0), v))) for v in (value, stepwise)]
    assert texts[0] == texts[1]


def test_a_shared_call_stays_shared() -> None:
    shared = k.call("exp", k.load(X, integer(0)))
    expansion = expand(kernel(Store(OUT, integer(0), k.mul(shared, shared))))
    (store,) = expansion.body
    assert isinstance(store, Store) and isinstance(store.value, k.Binary) and store.value.a is store.value.b


def test_a_target_keeps_functions_of_its_own() -> None:
    value = k.call("tanh", k.call("exp", k.load(X, integer(0))))
    expansion = expand(kernel(Let(k.var("y", f32), value)), is_native=lambda call: call.fn == "exp")
    (let,) = expansion.body
    assert isinstance(let, Let)
    assert called(expansion) == {"exp"}


def test_nothing_changes_without_calls() -> None:
    data = kernel(Store(OUT, integer(0), k.load(X, integer(0))))
    assert expand(data).body[0] is data.body[0]


@pytest.mark.parametrize(("value", "message"), [
    (k.Call(f32, 1, "exp", ()), "call exp"),
    (k.call("exp", k.lit(1, DTYPES["i32"])), "exp: expected f32 or f64"),
    (k.call("sine", k.lit(1.0, f32)), "call sine"),
])  # fmt: skip
def test_what_is_refused(value: k.Expr, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify_kernel(kernel(Let(k.var("y", value.dtype), value)))
