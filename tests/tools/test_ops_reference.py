"""docs/reference/supported-ops.md is what the frontends' tables have."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tools import ops_reference


def test_the_page_is_up_to_date(request: pytest.FixtureRequest) -> None:
    made = ops_reference.page(ops_reference.aten())
    if request.config.getoption("--update-golden"):
        ops_reference.PAGE.write_text(made)
    assert ops_reference.PAGE.read_text() == made, "old: python tools/ops_reference.py"
    assert "`Conv`" in made and "`CONV_2D`" in made and "`dot_general`" in made
