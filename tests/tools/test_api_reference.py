"""docs/reference/api.md is what the docstrings say, which says something about every entry."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ingot
from tools import api_reference

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "api.md"


def test_the_page_is_up_to_date(request: pytest.FixtureRequest):
    if request.config.getoption("--update-golden"):
        PAGE.write_text(api_reference.page())
    assert PAGE.read_text() == api_reference.page(), "docs/reference/api.md is old: python tools/api_reference.py"


def test_every_entry_says_something():
    entries = api_reference.page().split("\n### ")[1:]
    assert len(entries) > 25
    empty = [e.splitlines()[0] for e in entries if len([line for line in e.splitlines()[1:] if line.strip()]) < 1]
    assert not empty


def test_one_version_number():
    """The package's; others are made of it, or are compared here."""
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text()
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited and cited[1].strip("\"'") == ingot.__version__


def test_no_module_takes_the_name_of_an_exported_function():
    """Importing `ingot.NAME` puts the module where the function was: the second call would fail."""
    modules = {path.stem for path in (ROOT / "src" / "ingot").iterdir()}
    assert not modules & set(ingot.__all__)
