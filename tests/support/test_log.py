"""A version that nobody has tried is a warning, said once; older and newest known ones are silent."""

from __future__ import annotations

import pytest

from ingot.support.log import TESTED, warn_if_untested


@pytest.mark.parametrize(
    ("version", "warns"),
    [
        ("0.49.0", False),
        ("0.50.0", False),
        ("0.50.3rc1", False),
        ("0.51.0.dev1", True),
        ("1.0", True),
        ("0.100.0", True),
    ],
)
def test_newer_versions_are_told_once(version: str, warns: bool, caplog: pytest.LogCaptureFixture) -> None:
    assert TESTED["llvmlite"] == "0.50"
    warn_if_untested.cache_clear()
    for _ in range(2):
        warn_if_untested("llvmlite", version)
    assert [version in message for message in caplog.messages] == [True] * warns
