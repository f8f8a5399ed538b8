"""A model's configuration in Triton's format: as JSON over HTTP, and as the text of `config.pbtxt`.

https://github.com/triton-inference-server/common/blob/main/protobuf/model_config.proto
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ingot.runtime.program import TensorSpec
from ingot.serving.protocol import BYTES, datatype, sizes
from ingot.serving.scheduler import Queueing


class Word(str):
    """A value of an enumeration, which the text format does not quote."""


def configuration(
    name: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    queueing: Queueing,
    *,
    timeout: float | None = None,
) -> dict[str, Any]:
    """timeout: seconds that a request may wait."""
    has_batch = queueing.max_rows > 0

    def tensor(spec: TensorSpec) -> dict[str, Any]:
        kind = datatype(spec)
        return {
            "name": spec.name,
            "data_type": Word(f"TYPE_{'STRING' if kind == BYTES else kind}"),
            "dims": sizes(spec)[has_batch:],
        }

    policy: dict[str, Any] = {"max_queue_size": queueing.capacity}
    if timeout is not None:
        policy["default_timeout_microseconds"] = round(timeout * 1e6)
    batching = {"max_queue_delay_microseconds": round(queueing.delay * 1e6), "default_queue_policy": policy}
    return {
        "name": name,
        "backend": "python",
        "max_batch_size": queueing.max_rows,
        "input": [tensor(spec) for spec in inputs],
        "output": [tensor(spec) for spec in outputs],
        "instance_group": [{"count": queueing.instances, "kind": Word("KIND_CPU")}],
        "version_policy": {"all": {}},
        "dynamic_batching": batching,
    }


def text_format(message: Mapping[str, Any], indent: str = "") -> str:
    """A message in protobuf's text format."""
    lines: list[str] = []
    for key, value in message.items():
        for item in value if isinstance(value, list) and not _is_numbers(value) else [value]:
            if isinstance(item, Mapping):
                lines.append(f"{indent}{key} {{\n{text_format(item, indent + '  ')}{indent}}}\n")
            else:
                item_text = item if isinstance(item, Word) else json.dumps(item)
                lines.append(f"{indent}{key}: {item_text}\n")
    return "".join(lines)


def _is_numbers(values: Sequence[object]) -> bool:
    return all(isinstance(v, int) for v in values)
