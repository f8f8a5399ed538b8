from __future__ import annotations

import numpy as np
import pytest

from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Kernel, Store, integer
from ingot.ir.kernel.arithmetic import fma32, fma64
from ingot.ir.kernel.interp import run_kernel
from ingot.ir.kernel.math.expand import expand
from ingot.ir.kernel.math.unfused import unfused
from ingot.ir.kernel.verify import children, verify_kernel
from ingot.ir.types import DTYPES

COUNT = 400


def _numbers(name: str, rng: np.random.Generator) -> list[np.ndarray]:
    """Three operands whose product and sum often cancel."""
    dtype, bits = np.dtype({"f32": np.float32, "f64": np.float64}[name]), 24 if name == "f32" else 53
    a, b = (rng.integers(1, 1 << bits, COUNT).astype(dtype) * dtype.type(2.0) ** -10 for _ in range(2))
    near = -(a * b) * (1 + dtype.type(2.0) ** -rng.integers(1, bits + 4, COUNT).astype(dtype))
    c = np.where(rng.random(COUNT) < 0.7, near, rng.normal(size=COUNT)).astype(dtype)
    special = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0]
    a[:6], b[3:9], c[6:12] = special, special, special
    return [a, b, c]


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_one_rounding(name: str) -> None:
    values = _numbers(name, np.random.default_rng(0))
    buffers = [Buffer(n, DTYPES[name], writable=n == "out") for n in ("a", "b", "c", "out")]
    operands = [k.load(b, integer(0), COUNT) for b in buffers[:3]]
    value = unfused(k.fma(*operands), operands)
    kernel = Kernel("k", tuple(buffers), (), k.var("chunk"), integer(1), (Store(buffers[3], integer(0), value),))
    verify_kernel(kernel)
    result = np.zeros_like(values[0])
    with np.errstate(all="ignore"):
        run_kernel(kernel, dict(zip("abc", values, strict=True)) | {"out": result})
        want = (fma32 if name == "f32" else fma64)(*values)
        naive = values[0] * values[1] + values[2]
    np.testing.assert_array_equal(result, want)
    assert (naive != want).sum() > COUNT // 4  # two roundings differ


def test_arguments_of_a_function_are_left_alone() -> None:
    x, result = Buffer("x", DTYPES["f32"]), Buffer("out", DTYPES["f32"], writable=True)
    argument = k.fma(k.load(x, integer(0)), k.load(x, integer(1)), k.load(x, integer(2)))
    kernel = Kernel(
        "k", (x, result), (), k.var("chunk"), integer(1), (Store(result, integer(0), k.call("sin", argument)),)
    )

    def multiply_adds(kernel_: Kernel) -> int:
        visited: dict[int, k.Expr] = {}
        (store,) = kernel_.body
        assert isinstance(store, Store)
        todo: list[k.Expr] = [store.value]
        while todo:
            e = todo.pop()
            if id(e) not in visited:
                visited[id(e)] = e
                todo += children(e)
        return sum(isinstance(e, k.Fma) for e in visited.values())

    assert multiply_adds(expand(kernel, has_fma=False)) == 1 < multiply_adds(expand(kernel))
