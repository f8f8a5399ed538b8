"""Schemas that take too much time or memory to read are refused; others are not."""

from __future__ import annotations

import json
import string
import time
from typing import Any

import pytest

pytest.importorskip("llguidance")

from ingot.language.text.schemas import check_schemas, schemas_of
from ingot.support.errors import InputError

HARD: dict[str, dict[str, Any]] = {
    "multiples": {"allOf": [{"type": "integer", "multipleOf": n} for n in (7, 11, 13, 17, 19, 23)]},
    "patterns": {"allOf": [{"type": "string", "pattern": f".*{c}.*"} for c in string.ascii_lowercase]},
    "properties": {"type": "object", "patternProperties": {f"^a{i:05}$": {"type": "null"} for i in range(1000)}},
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if i else []) for i, name in enumerate(HARD)]
)
def test_refused(name: str) -> None:
    start = time.monotonic()
    with pytest.raises(InputError, match="the schema: expected patterns and multiples that are read in"):
        check_schemas(schemas_of(f'start: "a" %json {json.dumps(HARD[name])} "b"'))
    assert time.monotonic() - start < 30


def test_taken() -> None:
    patterns = {f"a{i}": {"type": "string", "pattern": f"^[a-z]{{{i}}}$"} for i in range(100)}
    check_schemas((json.dumps({"type": "object", "properties": patterns}),))
    check_schemas((json.dumps({"type": "string", "pattern": "("}),))  # wrong, as another place reports


def test_schemas_of_grammars() -> None:
    assert schemas_of('start: %json {"a": {"b": "}"}} | "x" %json   {"c": 1} ["d"] | %json {') == (
        '{"a": {"b": "}"}}', '{"c": 1}',
    )  # fmt: skip
    assert schemas_of("start: /a/") == ()
