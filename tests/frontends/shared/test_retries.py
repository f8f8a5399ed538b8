"""Imports that begin again."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.frontends.shared.computed_sizes import ComputedSizes
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.shared.retries import Known, with_retries
from ingot.frontends.shared.sizes import SizeInput, Sizes
from ingot.ir.dims import COMPUTED_PREFIX, DimLike, symbol
from ingot.ir.node import Graph, Input, const
from ingot.ir.types import TensorType, i64
from ingot.support.errors import ImportModelError, ShapeError

N, K = symbol("n"), symbol(f"{COMPUTED_PREFIX}places0")


def differ(a: DimLike, b: DimLike) -> ShapeError:
    return ShapeError("sizes differ", expected=a, got=b).between((a, b))


def test_sizes_of_inputs_become_equal() -> None:
    def attempt(known: Known) -> DimLike:
        if "n" not in known.fixed:
            raise differ(N, 4)
        return known.fixed["n"]

    assert with_retries(attempt, {}) == 4


def test_no_size_becomes_0() -> None:
    def attempt(known: Known) -> None:
        raise differ(40 * N, 32 * N)

    with pytest.raises(ImportModelError, match="sizes differ"):
        with_retries(attempt, {})


@pytest.mark.parametrize("other", [N, 4, N + 1])
def test_what_the_run_finds_is_compared(other: DimLike) -> None:
    """A condition of the graph, as is that it is at most what there is room for."""
    count = ops.reduce_sum(Input("x", TensorType(i64, (N,)))())

    def attempt(known: Known) -> Graph:
        result = ComputedSizes(known.computed_sizes)
        if (size := result.size(count, 2 * N, "places")) != other:
            raise differ(other, size)
        return result.added(Graph((), ()))

    graph = with_retries(attempt, {})
    conditions = (other - K, K - other, 2 * N - other)
    assert graph.size_nodes == {str(K): count} and graph.conditions == conditions


@pytest.mark.parametrize("other", [N, 4, N + 1])
def test_no_input_waits_for_what_the_run_finds(other: DimLike) -> None:
    def attempt(known: Known) -> None:
        raise differ(other, K)

    with pytest.raises(ImportModelError, match="sizes differ"):
        with_retries(attempt, {})


def test_sizes_that_an_input_cannot_give_end_the_import() -> None:
    attempts: list[Known] = []

    def attempt(known: Known) -> Graph:
        attempts.append(known)
        raise SizeInput("x")

    with pytest.raises(ImportModelError, match="'x'"):
        with_retries(attempt, {})
    assert len(attempts) == 2


def test_sizes_that_one_of_several_results_holds_are_not_evaluated() -> None:
    numbers = const(np.arange(4))
    with pytest.raises(Unsupported, match="top_k"):
        Sizes().dims(ops.TopK(1, 0)(numbers).results[1])
    assert Sizes().dims(ops.TopK(0, 0)(numbers).results[1]) == ()
