"""KServe's own client."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

pytest.importorskip("uvicorn")
kserve = pytest.importorskip("kserve", exc_type=ImportError)

from tests.serving.models import compiled, pooled, served, serving  # noqa: E402
from tests.serving.test_application import feeds  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("binary", [True, False])
def test_kserves_client_passes(binary: bool):
    model = compiled(pooled())

    async def infer(address: str) -> np.ndarray:
        client = kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v2"))
        base = f"http://{address}"
        assert await client.is_server_live(base) and await client.is_model_ready(base, "pool")
        inputs = [kserve.InferInput(n, [*a.shape], "FP32") for n, a in zip(("x", "shift"), feeds(2, 3), strict=True)]
        for tensor, array in zip(inputs, feeds(2, 3), strict=True):
            tensor.set_data_from_numpy(array, binary_data=binary)
        request = kserve.InferRequest("pool", inputs, parameters={"binary_data_output": binary})
        response = await client.infer(base, request, model_name="pool")
        return response.outputs[0].as_numpy()

    with served([serving("pool", model)]) as address:
        np.testing.assert_array_equal(asyncio.run(infer(address)), model(*feeds(2, 3)))
