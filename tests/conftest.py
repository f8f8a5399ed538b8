"""Golden texts: `golden("name", text)` compares with golden/name.txt beside the test; --update-golden writes it.

Whatever a test compiles is verified after every pass.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("INGOT_VERIFY", "1")

Golden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden texts instead of comparing with them")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    folder = Path(request.path).parent / "golden"

    def compare(name: str, text: str) -> None:
        path = folder / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            folder.mkdir(exist_ok=True)
            path.write_text(text)
            return
        assert path.is_file(), f"no golden text {path}: run with --update-golden"
        assert text == path.read_text(), f"differs from {path}; if intended, run with --update-golden"

    return compare
