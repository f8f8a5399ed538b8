"""Imports that begin again."""

from __future__ import annotations

import pytest

from ingot.frontends.shared.attempts import Known, attempts
from ingot.ir.dims import FOUND, DimLike, symbol
from ingot.support.errors import ImportModelError, ShapeError

N, K = symbol("n"), symbol(f"{FOUND}places0")


def differ(a: DimLike, b: DimLike) -> ShapeError:
    return ShapeError("sizes differ", expected=a, got=b).between((a, b))


def test_sizes_of_inputs_become_equal() -> None:
    def attempt(known: Known) -> DimLike:
        if "n" not in known.fixed:
            raise differ(N, 4)
        return known.fixed["n"]

    assert attempts(attempt, {}) == 4


@pytest.mark.parametrize("other", [N, 4, N + 1])
def test_no_input_waits_for_what_the_run_finds(other: DimLike) -> None:
    def attempt(known: Known) -> None:
        raise differ(other, K)

    with pytest.raises(ImportModelError, match="sizes differ"):
        attempts(attempt, {})
