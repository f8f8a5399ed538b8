"""Zoo models to `ExportedProgram` and to ONNX, and the check of each ONNX file against PyTorch."""

import logging
import os
import tempfile
import time
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor
from torch._dynamo.exc import UserError
from torch.export import Dim, ExportedProgram
from torch.export.dynamic_shapes import _DimHint as DimHint
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measure import deviation
from benchmarks.zoo import Model

# Exporters disagree about sizes of 0 and 1, so programs are traced at a batch and length of no special value.
TRACE_BATCH = 2


def _quiet() -> None:
    warnings.filterwarnings("ignore", module=r"torch|onnxscript|transformers|timm|copyreg")
    for name in ("torch.onnx", "onnxscript", "onnx_ir", "torch.export"):
        logging.getLogger(name).setLevel(logging.ERROR)


Shapes = tuple[dict[int, Dim | DimHint], ...]


def dynamic_shapes(model: Model) -> Shapes:
    """torch.export's dynamic_shapes for the positional inputs: named, bounded, lengths in their granularity's steps."""
    grain = model.net.granularity
    symbols: dict[str, Any] = {"batch": Dim("batch", min=1, max=1024)}
    if model.length:
        unit = Dim("length", min=2, max=max(model.length, model.variant[1], 512) // grain)
        symbols["length"] = unit if grain == 1 else grain * unit
    return tuple({axis: symbols[name] for axis, name in axes.items()} for axes in model.exported_axes)


def export_torch(model: Model) -> ExportedProgram:
    """`torch.export.export` with named dynamic dims; with Dim.DYNAMIC where the model's guards refuse their ranges."""
    _quiet()
    module = model.to_torch()
    inputs = model.inputs(TRACE_BATCH, model.length if model.net.fixed else model.variant[1])
    try:
        return torch.export.export(module, inputs, dynamic_shapes=dynamic_shapes(model))
    except (UserError, ConstraintViolationError):
        free = tuple(dict.fromkeys(axes, Dim.DYNAMIC) for axes in model.exported_axes)
        return torch.export.export(module, inputs, dynamic_shapes=free)


def export_onnx(model: Model, path: Path) -> str:
    """Write `model` to one ONNX file (weights inside, atomically); returns which exporter did it.

    torch.onnx.export(dynamo=True), which leaves exporter=dynamo in the file's metadata; the TorchScript exporter where
    that fails, or where torch.export would freeze an axis that ONNX can keep dynamic.
    """
    _quiet()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(suffix=".onnx", dir=path.parent)
    os.close(handle)
    partial = Path(name)
    try:
        exporter = _write(model, partial)
        partial.chmod(0o644)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return exporter


def _write(model: Model, path: Path) -> str:
    outputs = [f"output_{i}" for i in range(len(_tuple(reference(model, model.inputs()))))]
    if model.net.fixed:
        return _write_torchscript(model, path, outputs)
    try:
        program = torch.onnx.export(
            export_torch(model), (), dynamo=True, verbose=False, input_names=list(model.input_names),
            output_names=outputs,
        )  # fmt: skip
    except (torch.onnx.errors.OnnxExporterError, RuntimeError) as error:
        logging.getLogger(__name__).warning("%s: dynamo exporter failed: %s", model.name, str(error)[:300])
        return _write_torchscript(model, path, outputs)
    assert program is not None, "torch.onnx.export without a path returns the program"
    program.model.metadata_props["exporter"] = "dynamo"
    program.save(str(path), external_data=False)
    return "dynamo"


def _write_torchscript(model: Model, path: Path, outputs: list[str]) -> str:
    torch.onnx.export(
        model.to_torch(), model.inputs(TRACE_BATCH, model.variant[1]), str(path), dynamo=False,
        input_names=list(model.input_names), output_names=outputs,
        dynamic_axes=dict(zip(model.input_names, model.axes, strict=True)),
    )  # fmt: skip
    return "torchscript"


def _tuple(value: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def reference(model: Model, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """PyTorch's eager float32 outputs, always as a tuple."""
    with torch.inference_mode():
        return _tuple(model.to_torch()(*inputs))


def flops(model: Model, inputs: tuple[Tensor, ...]) -> int:
    """FLOPs (2 per multiply-add) of the contractions of one call: matmul, convolution, attention, LSTM gates.

    oneDNN and fused attention are off while counting, so that a recurrent layer and attention show their matmuls.
    """
    with (
        torch.inference_mode(),
        torch.backends.mkldnn.flags(enabled=False),
        sdpa_kernel(SDPBackend.MATH),
        FlopCounterMode(display=False) as counter,
    ):
        model.to_torch()(*inputs)
    return counter.get_total_flops()


@dataclass(frozen=True)
class Check:
    """What one exported file does: `worst` deviation of ONNX Runtime from PyTorch over both shapes, or an error."""

    name: str
    exporter: str
    opset: int
    worst: float
    seconds: float
    error: str = ""


def verify(model: Model) -> Check:
    """Export if needed and compare ONNX Runtime with PyTorch at batch 1 and at the second shape."""
    import onnxruntime  # the optional peer, at one place

    started = time.perf_counter()
    fresh = not model.onnx_path().exists()
    path = model.to_onnx()
    proto = onnx.load(path, load_external_data=False)
    opset = max(o.version for o in proto.opset_import if o.domain in ("", "ai.onnx"))
    exporter = "dynamo" if any(p.key == "exporter" for p in proto.metadata_props) else "torchscript"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    held = {i.name for i in session.get_inputs()}
    worst = 0.0
    for shape in ((1, 0), model.variant):
        inputs = model.inputs(*shape)
        feed = {n: t.numpy() for n, t in zip(model.input_names, inputs, strict=True) if n in held}
        results = session.run(None, feed)
        for got, expected in zip(results, reference(model, inputs), strict=True):
            worst = max(worst, deviation(np.asarray(got), expected.numpy()))
    seconds = time.perf_counter() - started if fresh else 0.0
    return Check(model.name, exporter, opset, worst, seconds)


def onnx_ops(model: Model) -> Counter[str]:
    """ONNX operator types with counts, subgraphs and functions included; other domains as "domain::op"."""
    proto = onnx.load(model.to_onnx(), load_external_data=False)
    counts: Counter[str] = Counter()

    def walk(nodes: Any) -> None:
        for node in nodes:
            counts[node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"] += 1
            for attribute in node.attribute:
                walk(attribute.g.node)

    walk(proto.graph.node)
    for function in proto.functions:
        walk(function.node)
    return counts


def aten_ops(program: ExportedProgram) -> Counter[str]:
    """Call targets of the program's graph with counts."""
    return Counter(str(node.target) for node in program.graph.nodes if node.op == "call_function")
