"""Small valid files of the formats beside ONNX, for tools/fuzz.py, and how each is read."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

FIXTURES = Path(__file__).resolve().parents[1] / "tests" / "frontends" / "tensorflow" / "fixtures"
Files = dict[str, bytes]  # of one model, by their names in its folder; the first is the one that is mutated


def stablehlo() -> list[Files]:
    """Programs of one CORE op."""
    from ingot import ops
    from ingot.frontends.stablehlo.out import emit
    from ingot.frontends.stablehlo.printer import show
    from ingot.ir.node import Graph, Input, Op
    from ingot.ir.types import TensorType, dtype_of

    assert ops  # they register themselves
    out: list[Files] = []
    for _, cls in sorted(Op.REGISTRY.items()):
        if not cls.__module__.startswith("ingot.ops.core"):
            continue
        for op, arrays in cls.samples():
            inputs = tuple(Input(f"x{i}", TensorType(dtype_of(a), a.shape))() for i, a in enumerate(arrays))
            text = show(emit(Graph(inputs, op(*inputs).results)).module).encode()
            if len(text) < 1 << 14:
                out.append({"model.mlir": text})
            break
    return out


def tensorflow() -> list[Files]:
    """The fixtures of TensorFlow's tests."""
    out: list[Files] = []
    for path in sorted(FIXTURES.glob("*.zip")):
        with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
            files = {name: archive.read(name) for name in archive.namelist() if not name.startswith("calls/")}
        for first in files:
            if first.endswith((".pb", ".index")):
                out.append({first: files[first], **files})
    return out


def tflite() -> list[Files]:
    """Models of one operator, those of its tests."""
    from tests.frontends.tflite.builder import one_op
    from tests.frontends.tflite.test_ops import CASES, result_types

    return [
        {"model.tflite": one_op(name, operands, result_types(name, operands, *(count or (1,))), options, **values)}
        for name, operands, options, values, *count in CASES
    ]


def _import_stablehlo(path: Path) -> object:
    from ingot.frontends.stablehlo import import_stablehlo

    return import_stablehlo(path)


def _import_tensorflow(path: Path) -> object:
    from ingot.frontends.tensorflow import import_tensorflow

    whole = next((folder for folder in path.parents if (folder / "saved_model.pb").exists()), None)
    return import_tensorflow(whole or path)


def _import_tflite(path: Path) -> object:
    from ingot.frontends.tflite import import_tflite

    return import_tflite(path)


READERS: dict[str, tuple[Callable[[], list[Files]], Callable[[Path], object]]] = {
    "stablehlo": (stablehlo, _import_stablehlo),
    "tensorflow": (tensorflow, _import_tensorflow),
    "tflite": (tflite, _import_tflite),
}


@cache
def corpus(kind: str) -> tuple[Files, ...]:
    return tuple(READERS[kind][0]())
