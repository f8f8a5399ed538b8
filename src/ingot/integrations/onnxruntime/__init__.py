"""ONNX Runtime's Python interface on compiled models: one changed import moves a service over.

import onnxruntime as ort   ->   import ingot.integrations.onnxruntime as ort
"""

from __future__ import annotations

from ingot.integrations.onnxruntime.options import (
    CPU,
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    RunOptions,
    RunTerminated,
    SessionOptions,
    ignored,
)
from ingot.integrations.onnxruntime.session import FeedError, InferenceSession, ModelMetadata, NodeArg
from ingot.integrations.onnxruntime.values import IOBinding, OrtValue

__all__ = [
    "ExecutionMode", "ExecutionOrder", "FeedError", "GraphOptimizationLevel", "IOBinding", "InferenceSession",
    "ModelMetadata", "NodeArg", "OrtValue", "RunOptions", "RunTerminated", "SessionOptions", "__version__",
    "disable_telemetry_events", "enable_telemetry_events", "get_all_providers", "get_available_providers",
    "get_device", "set_default_logger_severity", "set_default_logger_verbosity",
]  # fmt: skip

__version__ = "1.20.0"  # the interface that it follows


def get_available_providers() -> list[str]:
    return [CPU]


def get_all_providers() -> list[str]:
    return [CPU]


def get_device() -> str:
    return "CPU"


def disable_telemetry_events() -> None:
    """Nothing: there are none."""


def enable_telemetry_events() -> None:
    ignored("telemetry")


def set_default_logger_severity(severity: int) -> None:
    ignored("a default severity of messages (see the logger 'ingot')")


def set_default_logger_verbosity(verbosity: int) -> None:
    ignored("a default verbosity of messages (see the logger 'ingot')")
