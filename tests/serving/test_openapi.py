"""The server against its own OpenAPI description: generated requests, valid ones and invalid ones."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("uvicorn")
schemathesis = pytest.importorskip("schemathesis")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from schemathesis.checks import not_a_server_error  # noqa: E402  # pyright: ignore[reportMissingImports]
from schemathesis.generation.modes import GenerationMode  # noqa: E402  # pyright: ignore[reportMissingImports]
from schemathesis.specs.openapi.checks import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from ingot.serving.application import RequestLimits, application  # noqa: E402
from ingot.serving.metrics import Metrics  # noqa: E402
from ingot.serving.repository import Repository  # noqa: E402
from tests.serving.models import compiled, pooled, serving, typed, upper  # noqa: E402


@pytest.mark.slow
def test_every_answer_is_one_that_the_description_has():
    checks = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
    models = {"pool": pooled(), "typed": typed(), "upper": upper()}
    repository = Repository([serving(name, compiled(model)) for name, model in models.items()])
    app = application(repository, RequestLimits(seconds=20), Metrics())
    codes: Counter[int] = Counter()
    try:
        operations = [
            result.ok() for result in schemathesis.openapi.from_asgi("/openapi.json", app).get_all_operations()
        ]
        for operation in operations:
            is_post = operation.path.endswith("/infer")

            @settings(max_examples=60 if is_post else 3, deadline=None, derandomize=True, database=None)
            @given(case=st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in GenerationMode)))
            def run(case):
                response = case.call_and_validate(checks=checks)
                codes[response.status_code] += 1

            run()
    finally:
        repository.close()
    assert len(operations) == 6 + 5 * len(models)
    assert codes[200] > 20 and codes[400] > 20, codes
