"""Graphs that no walk may follow along every way: they compile, to what the interpreter says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ingot.ir.dims import bounds, dim_max, dim_min, parse_dim, symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph
from ingot.pipeline.build import build_native
from ingot.runtime.executor import CompiledModel
from ingot.support.errors import InputError, LimitError
from ingot.support.limits import Limits, check_elements, check_time, limited, parse_limits, spend_node
from tests import growth


@pytest.mark.parametrize("name", growth.STEPS)
def test_steps_that_use_their_input_twice_end(name: str) -> None:
    assert 0 < growth.lowered(growth.chain(growth.STEPS[name], 60)) <= 200


@pytest.mark.parametrize("name", ["ode", "rotate", "gather", "pad", "transpose", "flip"])
def test_steps_are_right(name: str) -> None:
    graph = growth.chain(growth.STEPS[name], 12)
    x = np.random.default_rng(0).standard_normal(growth.SQUARE, np.float32)
    (want,) = interpret(graph, (x,))
    got = CompiledModel(build_native(graph, 1), threads=1)(x)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("make", [growth.fan, growth.doubled_concat, growth.masked])
def test_graphs_whose_parts_are_shared_end(make: Callable[[int], Graph]) -> None:
    assert growth.lowered(make(30)) > 0


def test_long_chains_do_not_recurse() -> None:
    assert growth.lowered(growth.chain(growth.STEPS["where"], 1000)) > 0


def test_sizes_have_a_weight() -> None:
    n = symbol("n")
    with pytest.raises(LimitError, match="terms"):
        for _ in range(40):
            n = n % 7 + n // 3
    n = symbol("n")
    with pytest.raises(LimitError, match="terms"):
        for _ in range(40):
            n = n * n + n


def test_bounds_of_nested_maxima_end() -> None:
    d = symbol("n")
    for i in range(30):
        d = dim_max(d, symbol(f"a{i}") + 1) + dim_min(symbol("m"), i + 2)
    assert bounds(d)[0] is not None


def test_texts_of_sizes_that_nest_are_no_sizes() -> None:
    for text in ("(" * 5000 + "n" + ")" * 5000, "-" * 1500 + "n", "+".join(["n"] * 5000)):
        with pytest.raises(ValueError):
            parse_dim(text)


def test_limits_are_told_and_can_be_raised() -> None:
    with limited(Limits(nodes=3)):
        with pytest.raises(LimitError, match=r"at most 3.*--limit nodes=30"):
            for _ in range(4):
                spend_node("f/")
        with limited(), pytest.raises(LimitError):  # what holds already goes on
            spend_node("f/")
        with limited(Limits(nodes=30)):
            spend_node("f/")
    with limited(Limits(elements=8)), pytest.raises(LimitError, match="elements"):
        check_elements(9, "x")
    with limited(Limits(seconds=1e-9)), pytest.raises(LimitError, match="seconds"):
        check_time("the import")


def test_limits_as_texts() -> None:
    assert parse_limits([]) is None
    assert parse_limits(["nodes=5", "seconds=7"]) == Limits(nodes=5, seconds=7)
    for wrong in ("nodes", "nodes=x", "size=4", "nodes=-1", "nodes=0"):
        with pytest.raises(InputError):
            parse_limits([wrong])
