"""docs/reference/supported-ops.md is what the frontends' tables have."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tools import ops_reference


def test_the_page_is_up_to_date(request: pytest.FixtureRequest) -> None:
    text = ops_reference.page(ops_reference.aten())
    if request.config.getoption("--update-golden"):
        ops_reference.PAGE.write_text(text)
    assert ops_reference.PAGE.read_text() == text, "old: python tools/ops_reference.py"
    assert "`Conv`" in text and "`CONV_2D`" in text and "`dot_general`" in text
