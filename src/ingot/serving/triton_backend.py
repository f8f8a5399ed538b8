"""A compiled model in a process of Triton's Python backend. Its weights are mapped: all instances share them.

https://github.com/triton-inference-server/python_backend
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ingot.api.load import load
from ingot.serving.batching import Arrays, groups, key_of, run_joined


class TritonPythonModel:
    """One instance. Triton collects the requests of a batch; those of equal sizes become one call."""

    def initialize(self, args: dict[str, str]) -> None:
        import triton_python_backend_utils  # pyright: ignore[reportMissingImports]  # exists only in the backend

        self._triton: Any = triton_python_backend_utils
        config = json.loads(args["model_config"])
        threads = int(config["parameters"]["threads"]["string_value"])
        self._max_rows: int = config["max_batch_size"]
        self._model = load(Path(args["model_repository"]) / args["model_version"] / "model.ingot", threads=threads)

    def execute(self, requests: list[Any]) -> list[Any]:
        inputs = [self._inputs(request) for request in requests]
        keys = [key_of(arrays) if self._max_rows else None for arrays in inputs]
        rows = [0 if key is None else arrays[0].shape[0] for key, arrays in zip(keys, inputs, strict=True)]
        responses: list[Any] = [None] * len(requests)
        for group in groups(keys, rows, self._max_rows):
            for index, response in zip(group, self._answer([inputs[i] for i in group]), strict=True):
                responses[index] = response
        return responses

    def _inputs(self, request: Any) -> Arrays:
        # by DLPack, as for the results: Triton's backends up to release 2.51 only support arrays of numpy 1
        find = self._triton.get_input_tensor_by_name
        return [np.from_dlpack(find(request, spec.name)) for spec in self._model.inputs]

    def _answer(self, inputs: list[Arrays]) -> list[Any]:
        triton = self._triton
        try:
            results = run_joined(self._model.run, inputs)
        except Exception as error:  # an error of the model is the answer to its own request only
            if len(inputs) > 1:
                return [response for arrays_of_one in inputs for response in self._answer([arrays_of_one])]
            return [triton.InferenceResponse(error=triton.TritonError(str(error)))]
        names = [spec.name for spec in self._model.outputs]
        tensor = triton.Tensor.from_dlpack  # from capsules: from an array it takes 80 us, to determine its device
        return [
            triton.InferenceResponse(
                [tensor(n, np.asarray(a).__dlpack__()) for n, a in zip(names, arrays, strict=True)]
            )
            for arrays in results
        ]
