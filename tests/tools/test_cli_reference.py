"""docs/reference/commands.md is what --help says."""

from __future__ import annotations

import pytest

pytest.importorskip("typer")

from tools import cli_reference


def test_the_page_is_up_to_date(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        cli_reference.PAGE.write_text(cli_reference.page())
    assert cli_reference.PAGE.read_text() == cli_reference.page(), "old: python tools/cli_reference.py"


def test_every_option_says_something() -> None:
    assert "| `--budget`" in cli_reference.page() and "|  |\n" not in cli_reference.page()
